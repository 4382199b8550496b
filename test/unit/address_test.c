/* Patterns of encoders' addresses (control.allow). */
#include "core/conf/address.h"

#include "test/t.h"

#include <ctype.h>

#define LONG "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static bool fits(const char *pattern, const char *text)
{
    struct address_pattern p;

    T_CHECK(address_pattern(&p, pattern), "no pattern: %s", pattern);
    return address_fits(&p, span_str(text));
}

TEST(a_pattern_is_one_address_or_a_network)
{
    static const char *const bad[] = {"*", "tcp://*", "tcp://10.1.*", "ipc://*",
        "tcp://10.0.0.0/33:1", "tcp://[::]/129:1", "tcp://a/8:1",
        "tcp://10.0.0.0/8", "tcp://10.0.0.0/:1", "tcp://10.0.0.0/8/8:1",
        "tcp://10.0.0.0/08:1", "tcp://a:0", "tcp://a:7*", "tcp://", "tcp", "/",
        "", "tcp://[" LONG "]/8:1", "tcp://" LONG LONG LONG ":1"};
    struct address_pattern p;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        T_CHECK(!address_pattern(&p, bad[i]), "a pattern: %s", bad[i]);
    T_CHECK(!fits("tcp://a:*", "tcp://" LONG LONG LONG ":1"), "a long name");
}

/* The text behind the first colon is the port. */
TEST(a_host_has_letters_digits_and_few_signs)
{
    struct address a;
    char name[] = "tcp://a?:1", six[] = "tcp://[?]:1";

    for (int c = 1; c < 256; c++) {
        bool both = c == '.' || c == ':' || (c < 128 && isalnum(c));

        name[7] = six[7] = (char)c;
        T_CHECK(
            address_split(span_str(name), &a) == (both || c == '-' || c == '_'),
            "%s", name);
        T_CHECK(
            address_split(span_str(six), &a) == (both || c == '%'), "%s", six);
    }
}

TEST(one_address_has_its_port_or_any)
{
    T_CHECK(fits("tcp://127.0.0.1:7601", "tcp://127.0.0.1:7601"), "itself");
    T_CHECK(!fits("tcp://127.0.0.1:7601", "tcp://127.0.0.1:7602"), "a port");
    T_CHECK(fits("tcp://127.0.0.1:*", "tcp://127.0.0.1:1"), "any port");
    T_CHECK(fits("tcp://enc.example:*", "tcp://enc.example:1"), "a name");
    T_CHECK(!fits("tcp://enc:*", "tcp://enc.example:1"), "a longer name");
    T_CHECK(!fits("tcp://127.0.0.1:*", "tcp://127.0.0.1:*"), "no port");
}

TEST(a_network_has_numbers_only)
{
    T_CHECK(fits("tcp://10.1.0.0/16:*", "tcp://10.1.255.3:80"), "inside");
    T_CHECK(!fits("tcp://10.1.0.0/16:*", "tcp://10.2.0.1:80"), "outside");
    T_CHECK(!fits("tcp://10.1.0.0/16:*", "tcp://10.1.attacker.example:80"),
        "a name that begins like it");
    T_CHECK(
        fits("tcp://10.1.2.3/31:1", "tcp://10.1.2.2:1"), "the other of /31");
    T_CHECK(!fits("tcp://10.1.2.3/31:1", "tcp://10.1.2.4:1"), "beyond /31");
    T_CHECK(fits("tcp://0.0.0.0/0:*", "tcp://192.0.2.1:1"), "all of IPv4");
    T_CHECK(!fits("tcp://0.0.0.0/0:*", "tcp://[fd00::1]:1"), "no IPv6");
    T_CHECK(!fits("tcp://0.0.0.0/0:*", "tcp://0.0.0.0:1"), "no address");
    T_CHECK(fits("tcp://[fd00::]/8:*", "tcp://[fdff::1]:1"), "IPv6 inside");
    T_CHECK(!fits("tcp://[fd00::]/8:*", "tcp://[fe80::1]:1"), "IPv6 outside");
    T_CHECK(
        fits("tcp://[fd00::1]/128:*", "tcp://[fd00:0::1]:1"), "one of IPv6");
}
