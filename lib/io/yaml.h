/* yaml.h - reads a configuration file, at the start and for each reload. Any
 * thread. */
#ifndef MMX_IO_YAML_H
#define MMX_IO_YAML_H

#include "core/conf/conf.h"

#define YAML_FILE_MAX (256u << 10)

/* Sets the file's values in *c, which conf_init has filled; a list in the file
 * replaces that of *c. On error *c is of no use, and *e says what is
 * wrong: "mmx-langd.yaml:12:3: unknown key `pool`; there are ...".
 * ERR_MALFORMED: the file's content; ERR_INTERNAL: the file cannot be read.
 * Call conf_finish afterwards. */
MUST_CHECK enum err yaml_load(
    const char *path, struct conf *c, struct conf_error *e);

/* Prefixes the error with the position of a key, "mmx-langd.yaml:12:3: ", if
 * the file has the key, or else of the item that lacks it. path: as for
 * conf_set; c: as for yaml_load. */
void yaml_place(const char *file, const struct conf *c, const char *path,
    struct conf_error *e);

#endif
