/* mmx-langd - the daemon beside language engines. Its code is in lib/node; this
 * file names the role. */
#include "wire/wire.h"
#include "node/main.h"

int main(int argc, char **argv)
{
    return daemon_main(ROLE_LANGD, argc, argv);
}
