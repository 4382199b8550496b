/* embedding_test.c - the vectors of EMBEDDING.md that only C computes: layouts
 * and their hashes, the names that the llama.cpp programs make. The library's
 * calls are in test/python/embedding_test.py. */
#include "client/llama/digest.h"
#include "wire/layout.h"

#include "test/vectors.h"

TEST(layouts_and_their_hashes)
{
    struct vectors v = vectors_open();

    while (vectors_next(&v, "kind", "layout")) {
        char said[1100], text[1100], row[32];
        struct layout l;
        uint32_t at;

        vector_text(&v, "said", said, sizeof said);
        vector_text(&v, "text", text, sizeof text);
        T_OK(layout_parse(span_str(said), &l, &at));
        T_EQ_STR(l.text, text);
        T_EQ_U64(l.hash, vector_word(&v, "hash"));
        snprintf(row, sizeof row, "\"row_bytes\": %u,", l.row_bytes);
        T_HAS(v.line, row);
    }
}

TEST(layouts_that_are_refused)
{
    struct vectors v = vectors_open();

    while (vectors_next(&v, "kind", "layout-refused")) {
        char said[1100];
        struct layout l;
        uint32_t at;

        vector_text(&v, "said", said, sizeof said);
        T_CHECK(layout_parse(span_str(said), &l, &at) == ERR_MALFORMED,
            "`%s` is taken", said);
    }
}

TEST(names_of_a_picture_by_its_digest)
{
    struct vectors v = vectors_open();

    while (vectors_next(&v, "kind", "llama-key")) {
        char tag[512], id[128];
        uint8_t key[32], wanted[32];

        vector_text(&v, "tag", tag, sizeof tag);
        vector_text(&v, "digest", id, sizeof id);
        T_EQ_U64(digest_room(tag, id), vector_word(&v, "id"));
        T_TRUE(digest_key(tag, id, key));
        T_EQ_U64(vector_bytes(&v, "key", wanted, sizeof wanted), 32);
        T_EQ_MEM(key, wanted, 32);
        if (strlen(tag) == 256) {
            /* otherwise its key would equal the shorter tag's */
            strcat(tag, "y");
            T_EQ_U64(digest_room(tag, id), 0);
        }
    }
}
