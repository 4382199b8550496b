/* mmx-langd - the daemon beside language engines. Everything is in lib/node;
 * this names the role. */
#include "wire/wire.h"
#include "node/main.h"

int main(int argc, char **argv)
{
    return daemon_main(ROLE_LANGD, argc, argv);
}
