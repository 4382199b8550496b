/* mmx_aux.h - aux: the data that engines send beside the rows of a room, so
 * that an encoder of one engine can feed a language host of another. An aux has
 * records of a tag and values, in ascending order of tags, at most 32 KiB;
 * EMBEDDING.md has the bytes. Data beyond that, up to 16 MiB in total, is sent
 * in rows behind the item's: mmx_aux_split.
 *
 *     uint32_t grid[3] = {1, 16, 48}, merge = 2;
 *     uint64_t mem[64];
 *     struct mmx_aux a;
 *     int bytes;
 *
 *     mmx_aux_begin(&a, mem, sizeof mem);
 *     mmx_aux_put(&a, MMX_AUX_GRID, grid, 3);
 *     mmx_aux_put(&a, MMX_AUX_MERGE, &merge, 1);
 *     bytes = mmx_aux_end(&a);            // announce.aux = mem, .aux_len
 *
 * and the reader, with what mmx_look returned:
 *
 *     n = mmx_aux_get(look.aux, look.aux_len, MMX_AUX_GRID, grid, 3);
 *
 * Nothing here allocates, and any thread may call it. Buffers need no
 * alignment. */
#ifndef MMX_AUX_H
#define MMX_AUX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Type of the values behind the tag. */
enum mmx_aux_tag {
    MMX_AUX_MODALITY = 1,    /* u32 enum mmx_modality */
    MMX_AUX_FLAGS = 2,       /* u32 enum mmx_aux_flags */
    MMX_AUX_PART = 3,        /* u32 index, number of the request's rooms */
    MMX_AUX_ROWS = 4,        /* u32 of each item of the room */
    MMX_AUX_GRID = 5,        /* u32 t, h, w of each item, in patches */
    MMX_AUX_MERGE = 6,       /* u32 patches along h and w that make a row */
    MMX_AUX_SIZES = 7,       /* u32 height, width of each item, in pixels */
    MMX_AUX_SPAN = 8,        /* u32 positions of each item */
    MMX_AUX_MROPE_DELTA = 9, /* i32 next position less tokens of the prompt */
    MMX_AUX_TIMES = 10,      /* f64 seconds of each temporal patch */
    MMX_AUX_SECONDS = 11,    /* f64 seconds per temporal patch, of each item */
    MMX_AUX_CHUNK = 12,      /* bytes of mtmd_input_chunk_save */
    MMX_AUX_EXTRA = 13,      /* bytes, a JSON object */
    MMX_AUX_REST = 65535     /* u32 bytes of it in rows: mmx_aux_split */
};

enum mmx_modality { MMX_IMAGE = 1, MMX_VIDEO = 2, MMX_AUDIO = 3 };
enum mmx_aux_flags { MMX_AUX_BOTH_WAYS = 1, MMX_AUX_MROPE = 2 };

#define MMX_AUX_MAX   32768      /* bytes of an aux */
#define MMX_AUX_WHOLE (16 << 20) /* and of one with its rest */

struct mmx_aux {
    uint8_t *mem;
    size_t size, used;
    uint32_t last; /* tag */
    int failed;    /* the first error: a negative reason */
};

/* Begins an aux in mem. An aux of more than MMX_AUX_MAX bytes has to be
 * split. */
void mmx_aux_begin(struct mmx_aux *a, void *mem, size_t size);

/* Appends n values (GRID: 3 for each item; bytes: their number).
 * -MMX_E_MALFORMED: the tag is unknown or not above the last one, or n is no
 * whole number of entries; -MMX_E_TOO_LARGE: it does not fit. After an
 * error all later calls fail too, so it is enough to check mmx_aux_end. */
int mmx_aux_put(
    struct mmx_aux *a, enum mmx_aux_tag tag, const void *values, size_t n);

/* Returns the bytes of the whole aux, or the first error. */
int mmx_aux_end(struct mmx_aux *a);

/* Checks the whole aux. -MMX_E_MALFORMED: it is no aux of this kind, or broken;
 * -MMX_E_VERSION: of another version, or with a record that must be understood
 * and is not. */
int mmx_aux_check(const void *aux, size_t len);

/* Copies the values of a tag, returns their number; 0: there are none.
 * -MMX_E_TOO_LARGE: more than max, and nothing is copied; else as
 * mmx_aux_check, which it calls. */
int mmx_aux_get(
    const void *aux, size_t len, enum mmx_aux_tag tag, void *out, size_t max);

/* Does what mmx_aux_get does, without a copy: *out is inside the aux. For tags
 * whose values are bytes. */
int mmx_aux_at(
    const void *aux, size_t len, enum mmx_aux_tag tag, const void **out);

/* An aux of more than 32 KiB ("whole") is cut between two records. The first
 * part is the room's aux. The second part, its rest, is in the last rows of the
 * room, in the pool's first field; the end of the last row, and the other
 * fields, are zero:
 *
 *     aux_len = mmx_aux_split(whole, bytes, aux, &cut);
 *     more = (bytes - cut + row_bytes - 1) / row_bytes;
 *     ...announce rows + more, write the rows...
 *     mmx_scatter(m, r, NULL, rows, more, whole + cut, 0);
 *     mmx_commit_final(m, r, 0, rows + more, rows + more, NULL, 0);
 *
 * with zeros behind the whole up to the end of a row, as calloc makes them.
 * Write zeros to these rows of each other field, too, by its name: a block
 * still has its old bytes. The reader:
 *
 *     more = mmx_aux_rest(look.aux, look.aux_len, look.total, row_bytes);
 *     mmx_gather(m, r, NULL, look.total - more, more, rest, 0);
 *     bytes = mmx_aux_join(look.aux, look.aux_len, rest, more * row_bytes,
 *                          whole, size);
 *
 * mmx_aux_split writes the aux, of at most MMX_AUX_MAX bytes, and returns its
 * bytes; *rest is the offset in the whole at which the rest begins, len: there
 * is no rest. Errors are those of mmx_aux_check, and -MMX_E_MALFORMED if the
 * aux has a rest already. */
int mmx_aux_split(const void *whole, size_t len, void *aux, size_t *rest);

/* Returns how many of a room's total rows belong to the rest of its aux; 0: it
 * has no rest, or there is no aux. -MMX_E_TOO_LARGE: the aux claims more rows
 * than there are, or more than MMX_AUX_WHOLE bytes; else as mmx_aux_check. */
int mmx_aux_rest(
    const void *aux, size_t len, uint32_t total, uint32_t row_bytes);

/* Writes the whole aux and returns its bytes, at most len + rest_len. rest: the
 * bytes of those rows, less than 4 GiB; none if the aux has no rest.
 * -MMX_E_TOO_LARGE: it needs more than rest_len, or size; -MMX_E_MALFORMED: the
 * rest is not what mmx_aux_split makes. */
int mmx_aux_join(const void *aux, size_t len, const void *rest, size_t rest_len,
    void *whole, size_t size);

#ifdef __cplusplus
}
#endif

#endif
