/* Messages over TCP, and the hash that proves who sent them. */
#include "ranks.h"

#include "comm/wire.h"

static void to_hex(const uint8_t *bytes, char out[2 * ABAR_SHA256 + 1])
{
    for (int i = 0; i < ABAR_SHA256; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

/* FIPS 180-4's examples, and lengths around the end of a block by Python's hashlib. */
static void sha256_has_the_standards_values(void **state)
{
    (void)state;
    static const struct {
        char byte;
        size_t times;
        const char *digest;
    } cases[] = {{'a', 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                 {'a', 1, "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"},
                 {'a', 55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
                 {'a', 56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
                 {'a', 63, "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
                 {'a', 64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
                 {'a', 65, "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
                 {'a', 119, "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb"},
                 {'a', 120, "2f3d335432c70b580af0e8e1b3674a7c020d683aa5f73aaaedfdc55af904c21c"},
                 {'a', 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}};
    char hex[2 * ABAR_SHA256 + 1];
    uint8_t digest[ABAR_SHA256];
    abar__sha256 s;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar__sha256_start(&s);
        for (size_t k = 0; k < cases[i].times; k++) abar__sha256_add(&s, &cases[i].byte, 1);
        abar__sha256_end(&s, digest);
        to_hex(digest, hex);
        assert_string_equal(hex, cases[i].digest);
    }
    abar__sha256_start(&s);
    abar__sha256_add(&s, "abc", 3);
    abar__sha256_end(&s, digest);
    to_hex(digest, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

/* RFC 4231, test cases 2 and 6 (a key longer than a block), and an empty key by Python's hmac. */
static void hmac_has_the_standards_values(void **state)
{
    (void)state;
    uint8_t mac[ABAR_SHA256], key[131];
    char hex[2 * ABAR_SHA256 + 1];
    memset(key, 0xaa, sizeof key);
    abar__hmac("Jefe", 4, "what do ya want for nothing?", 28, mac);
    to_hex(mac, hex);
    assert_string_equal(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    const char *text = "Test Using Larger Than Block-Size Key - Hash Key First";
    abar__hmac(key, sizeof key, text, strlen(text), mac);
    to_hex(mac, hex);
    assert_string_equal(hex, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    abar__hmac("", 0, "abar", 4, mac);
    to_hex(mac, hex);
    assert_string_equal(hex, "03f2ea5f21e8b3965d5ddb911990bd9ca54995935633e1257145ef5e1090f0d6");
}

static void bytes_differ_wherever_they_differ(void **state)
{
    (void)state;
    uint8_t a[ABAR_SHA256] = {0}, b[ABAR_SHA256] = {0};
    assert_true(abar__same_bytes(a, b, sizeof a));
    for (size_t i = 0; i < sizeof a; i++)
        for (int bit = 0; bit < 8; bit++) {
            b[i] = (uint8_t)(1 << bit);
            assert_false(abar__same_bytes(a, b, sizeof a));
            b[i] = 0;
        }
}

static void join_is_read_as_written(void **state)
{
    (void)state;
    abar__wire_join join = {.rank = 3, .to = 70000, .size = 0x01020304, .port = 0xfedc};
    for (size_t i = 0; i < sizeof join.nonce; i++) join.nonce[i] = (uint8_t)(i + 1);
    for (size_t i = 0; i < sizeof join.mac; i++) join.mac[i] = (uint8_t)(200 - i);
    uint8_t bytes[ABAR_WIRE_JOIN_BYTES];
    abar__wire m;
    abar__wire_write_join(&join, bytes);
    for (size_t n = 0; n < sizeof bytes; n++) assert_int_equal(abar__wire_read(bytes, n, &m), 0);
    assert_int_equal(abar__wire_read(bytes, sizeof bytes, &m), sizeof bytes);
    assert_int_equal(m.kind, ABAR_WIRE_JOIN);
    assert_true(m.join.rank == 3 && m.join.to == 70000 && m.join.size == 0x01020304 && m.join.port == 0xfedc);
    assert_memory_equal(m.join.nonce, join.nonce, sizeof join.nonce);
    assert_memory_equal(m.join.mac, join.mac, sizeof join.mac);
}

/* The lengths that each kind may have; all others are refused with the header, before anything of them is read. */
static void lengths_are_those_of_the_kind(void **state)
{
    (void)state;
    for (int kind = 0; kind < 256; kind++)
        for (uint32_t n = 0; n < 2000; n++) {
            const bool table = n > 16 && (n - 16) % 20 == 0, text = n >= 1 && n <= 511;
            const bool possible = kind == 1                ? n == 16
                                  : kind == 2              ? n == 64
                                  : kind == 3              ? n == 32
                                  : kind == 4              ? table
                                  : kind == 5 || kind == 8 ? text
                                  : kind == 6              ? n > 0
                                  : kind == 7 || kind == 9 ? n == 0
                                                           : false;
            uint8_t header[ABAR_WIRE_HEADER];
            abar__wire m;
            abar__wire_header((abar__wire_kind)kind, n, 0, header);
            const int expected = !possible ? -1 : kind == 6 || n == 0 ? ABAR_WIRE_HEADER : 0;
            assert_int_equal(abar__wire_read(header, sizeof header, &m), expected);
        }
    static const uint32_t large[] = {0xffffffff, 0x80000000, (1u << 20) + 1, 16 + 20 * 1025};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        for (int kind = 1; kind < ABAR_WIRE_KINDS; kind++) {
            uint8_t header[ABAR_WIRE_HEADER];
            abar__wire m;
            abar__wire_header((abar__wire_kind)kind, large[i], 0, header);
            const bool fits = kind == ABAR_WIRE_DATA && large[i] <= ABAR_WIRE_PIECE;
            assert_int_equal(abar__wire_read(header, sizeof header, &m), fits ? ABAR_WIRE_HEADER : -1);
        }
}

static void other_programs_are_told_by_their_first_bytes(void **state)
{
    (void)state;
    abar__wire m;
    assert_int_equal(abar__wire_read((const uint8_t *)"G", 1, &m), -1);
    assert_int_equal(abar__wire_read((const uint8_t *)"ac", 2, &m), -1);
    assert_int_equal(abar__wire_read((const uint8_t *)"ab\2", 3, &m), -1); /* another version */
    assert_int_equal(abar__wire_read((const uint8_t *)"ab\1", 3, &m), 0);
}

static void texts_hold_no_control_characters(void **state)
{
    (void)state;
    uint8_t bytes[ABAR_WIRE_HEADER + 3] = {0};
    abar__wire m;
    abar__wire_header(ABAR_WIRE_FAIL, 3, 0, bytes);
    memcpy(bytes + ABAR_WIRE_HEADER, "a b", 3);
    assert_int_equal(abar__wire_read(bytes, sizeof bytes, &m), sizeof bytes);
    memcpy(bytes + ABAR_WIRE_HEADER, "a\033b", 3);
    assert_int_equal(abar__wire_read(bytes, sizeof bytes, &m), -1);
}

static void table_entries_are_read_as_written(void **state)
{
    (void)state;
    enum { RANKS = 3, BODY = ABAR_WIRE_NONCE + RANKS * ABAR_WIRE_ENTRY };
    uint8_t bytes[ABAR_WIRE_HEADER + BODY] = {0};
    abar__wire_address a = {.family = 4, .bytes = {10, 0, 0, 7}, .port = 40000}, b;
    abar__wire m;
    abar__wire_header(ABAR_WIRE_TABLE, BODY, 0, bytes);
    abar__wire_write_entry(&a, bytes + ABAR_WIRE_HEADER + ABAR_WIRE_NONCE + ABAR_WIRE_ENTRY);
    assert_int_equal(abar__wire_read(bytes, sizeof bytes, &m), sizeof bytes);
    assert_true(abar__wire_entry(&m, RANKS, 0, &b) && b.family == 0);
    assert_true(abar__wire_entry(&m, RANKS, 1, &b) && b.family == 4 && b.port == 40000);
    assert_memory_equal(a.bytes, b.bytes, sizeof a.bytes);
    assert_false(abar__wire_entry(&m, RANKS, 2, &b)); /* no address */
    assert_false(abar__wire_entry(&m, RANKS, 3, &b));
    assert_false(abar__wire_entry(&m, RANKS + 1, 1, &b)); /* another number of ranks */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_has_the_standards_values),   cmocka_unit_test(hmac_has_the_standards_values),
        cmocka_unit_test(bytes_differ_wherever_they_differ), cmocka_unit_test(join_is_read_as_written),
        cmocka_unit_test(lengths_are_those_of_the_kind),     cmocka_unit_test(other_programs_are_told_by_their_first_bytes),
        cmocka_unit_test(texts_hold_no_control_characters),  cmocka_unit_test(table_entries_are_read_as_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
