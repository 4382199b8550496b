/* admin.h - what admin/ offers to loop/: answers to QUERY, which are reports
 * about the node, or the answers of commands, which the loop carries out.
 * Called only by the loop's thread. */
#ifndef MMX_NODE_ADMIN_ADMIN_H
#define MMX_NODE_ADMIN_ADMIN_H

#include "node/state.h"

void admin_query(struct node *n, uint32_t conn, const struct local_msg *m);
/* Makes slices of reports for a bounded time. Call once per turn while
 * n->making is not empty. */
void admin_serve(struct node *n);
/* Continues to send the report of a connection, if it has one. */
void admin_write(struct node *n, uint32_t conn);
void admin_forget(struct node *n, uint32_t conn);

/* Fills h with the health of the brain and of the shards. */
void node_health(struct node *n, struct health *h);
/* Appends the node's health as a row. */
void node_health_row(struct node *n, struct rows_out *to);

/* Returns what crash_watch is to show, until node_free. */
const struct crash_view *node_crash_view(struct node *n);
/* Prints the brain's status and rooms to stderr without allocating. For
 * crashes. */
void node_print(struct node *n);

/* commands: each has a function command_<name>, which is called for commands
 * that came by the socket for orders. Each query is answered once, now or
 * later, by admin_answer or admin_refuse; until then it may be on a list of its
 * command, from which it is removed when its connection ends. */
struct query;
struct command {
    const char *word; /* NULL: behind the last */
    bool takes;       /* it has arguments; else args is empty */
    void (*run)(struct node *n, struct query *q, const char *args);
};
#define COMMAND(name, word, takes, meaning)                                    \
    void command_##name(struct node *n, struct query *q, const char *args);
#include "wire/command.def"
/* Returns where the answer's rows go. */
struct rows_out *admin_rows(struct query *q);
void admin_answer(struct node *n, struct query *q);
void admin_refuse(
    struct node *n, struct query *q, enum err err, const char *text);
/* Puts the query on the list, at its end. */
void admin_wait(struct query *q, struct list *list);
/* Takes the first query off the list and returns it; NULL: none. */
struct query *admin_next(struct list *list);

#endif
