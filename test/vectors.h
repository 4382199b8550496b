/* vectors.h - reads vectors/embedding.json, which has one vector a line and no
 * escapes in what is read here. Tests run in the top folder. */
#ifndef MMX_TEST_VECTORS_H
#define MMX_TEST_VECTORS_H

#include "test/t.h"

struct vectors {
    FILE *f;
    uint32_t count;
    char line[4096]; /* the vector */
};

static inline struct vectors vectors_open(void)
{
    struct vectors v = {.f = fopen("test/vectors/embedding.json", "r")};

    T_CHECK(v.f != NULL, "%s: no vectors", "test/vectors/embedding.json");
    return v;
}

/* Reads the next vector that has this field. False: that was the last one, and
 * the file is closed. */
static inline bool vectors_next(
    struct vectors *v, const char *name, const char *value)
{
    char wanted[128];

    snprintf(wanted, sizeof wanted, "\"%s\": \"%s\"", name, value);
    while (fgets(v->line, sizeof v->line, v->f))
        if (strstr(v->line, wanted)) {
            v->count++;
            return true;
        }
    fclose(v->f);
    T_CHECK(v->count, "no vector has %s", wanted);
    return false;
}

/* Copies a field's text. */
static inline void vector_text(
    const struct vectors *v, const char *name, char *out, size_t size)
{
    char key[64];
    const char *at;
    size_t len;

    snprintf(key, sizeof key, "\"%s\": \"", name);
    at = strstr(v->line, key);
    T_CHECK(at != NULL, "no %s in %s", name, v->line);
    at += strlen(key);
    len = strcspn(at, "\"");
    T_TRUE(len < size && !memchr(at, '\\', len));
    memcpy(out, at, len);
    out[len] = 0;
}

/* Returns a field's 16 hex digits. */
static inline uint64_t vector_word(const struct vectors *v, const char *name)
{
    char text[17], *end;
    uint64_t word;

    vector_text(v, name, text, sizeof text);
    word = strtoull(text, &end, 16);
    T_TRUE(end == text + 16);
    return word;
}

/* Reads a field's hex digits, returns the number of bytes. */
static inline size_t vector_bytes(
    const struct vectors *v, const char *name, uint8_t *out, size_t size)
{
    char text[2048];
    size_t n = 0;

    vector_text(v, name, text, sizeof text);
    for (unsigned byte; text[2 * n]; n++) {
        T_TRUE(n < size && sscanf(text + 2 * n, "%2x", &byte) == 1);
        out[n] = (uint8_t)byte;
    }
    return n;
}

#endif
