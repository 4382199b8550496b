/* nth_call.c - preloaded into a program: counts, by kind, the calls that the
 * program's own code makes, and lets one of them fail, as the system or the
 * library might. The table of calls is below.
 *
 * The file MMX_NTH is mapped: struct page. A test writes fail_at of a kind
 * before the program starts or while it runs; the call that raises `calls` to
 * it fails. Memory and maps that are in use are counted as well.
 *
 * The slots of the program's own table of imported functions are changed, so
 * that libraries call each other as usual: what libzmq or UCX does without
 * memory is not tested here. The slots have to be bound: LD_BIND_NOW. Any
 * thread. Rejected: functions of the same names, which libraries would find as
 * well, and which hide those of a sanitizer. */
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KINDS(K)                                                               \
    K(memory)                                                                  \
    K(map)                                                                     \
    K(socket)                                                                  \
    K(message) K(passing) K(thread) K(loop) K(zmq) K(ucx) K(tls) K(disk)

#define UV(error)  (-(error))
#define UCS_MEMORY (-4) /* UCS_ERR_NO_MEMORY; also as a pointer */

/* kind, function, the result of a failed call, errno, and a condition on its
 * arguments a to h */
#define CALLS(C)                                                               \
    C(memory, malloc, 0, ENOMEM, true)                                         \
    C(memory, calloc, 0, ENOMEM, true)                                         \
    C(memory, realloc, 0, ENOMEM, true)                                        \
    C(memory, aligned_alloc, 0, ENOMEM, true)                                  \
    C(memory, open_memstream, 0, ENOMEM, true)                                 \
    C(memory, asprintf, -1, ENOMEM, true)                                      \
    C(memory, __asprintf_chk, -1, ENOMEM, true)                                \
    C(map, mmap, -1, ENOMEM, true)                                             \
    C(map, memfd_create, -1, EMFILE, true)                                     \
    C(map, ftruncate, -1, ENOSPC, true)                                        \
    C(map, madvise, -1, ENOMEM, true)                                          \
    C(map, mlock, -1, ENOMEM, true)                                            \
    C(socket, socket, -1, EMFILE, true)                                        \
    C(socket, bind, -1, EADDRINUSE, true)                                      \
    C(socket, listen, -1, EADDRINUSE, true)                                    \
    C(socket, accept, -1, EMFILE, true)                                        \
    C(socket, accept4, -1, EMFILE, true)                                       \
    C(socket, connect, -1, ECONNREFUSED, true)                                 \
    C(socket, setsockopt, -1, ENOBUFS, true)                                   \
    C(socket, getsockname, -1, ENOBUFS, true)                                  \
    C(socket, getpeername, -1, ENOTCONN, true)                                 \
    C(socket, getaddrinfo, -10, 0, true) /* EAI_MEMORY */                      \
    C(socket, getifaddrs, -1, ENOMEM, true)                                    \
    C(socket, eventfd, -1, EMFILE, true)                                       \
    C(socket, epoll_create1, -1, EMFILE, true)                                 \
    C(socket, epoll_ctl, -1, ENOSPC, b == 1) /* EPOLL_CTL_ADD */               \
    C(socket, timerfd_create, -1, EMFILE, true)                                \
    C(socket, dup3, -1, EMFILE, true)                                          \
    C(socket, fcntl, -1, EMFILE, (int)b == F_DUPFD_CLOEXEC)                    \
    C(socket, syscall, -1, EMFILE, a == SYS_pidfd_open)                        \
    C(message, send, -1, ENOBUFS, true)                                        \
    C(message, sendto, -1, ENOBUFS, true)                                      \
    C(message, sendmsg, -1, ENOBUFS, true)                                     \
    C(message, recv, -1, ECONNRESET, true)                                     \
    C(message, recvmsg, -1, ECONNRESET, true)                                  \
    C(message, poll, -1, EINTR, true)                                          \
    C(thread, pthread_create, EAGAIN, 0, true)                                 \
    C(thread, pthread_attr_init, ENOMEM, 0, true)                              \
    C(thread, pthread_mutex_init, ENOMEM, 0, true)                             \
    C(loop, uv_loop_init, UV(EMFILE), EMFILE, true)                            \
    C(loop, uv_poll_init, UV(ENOMEM), ENOMEM, true)                            \
    C(loop, uv_signal_init, UV(EMFILE), EMFILE, true)                          \
    C(loop, uv_signal_start, UV(ENOMEM), ENOMEM, true)                         \
    C(zmq, zmq_ctx_new, 0, EMFILE, true)                                       \
    C(zmq, zmq_ctx_set, -1, EINVAL, true)                                      \
    C(zmq, zmq_socket, 0, EMFILE, true)                                        \
    C(zmq, zmq_setsockopt, -1, EINVAL, true)                                   \
    C(zmq, zmq_getsockopt, -1, EINTR, true)                                    \
    C(zmq, zmq_bind, -1, EADDRINUSE, true)                                     \
    C(zmq, zmq_connect, -1, EMTHREAD_ZMQ, true)                                \
    C(zmq, zmq_send, -1, EINTR, true)                                          \
    C(zmq, zmq_msg_recv, -1, EINTR, true)                                      \
    C(zmq, zmq_socket_monitor, -1, EINVAL, true)                               \
    C(zmq, zmq_curve_public, -1, ENOTSUP, true)                                \
    C(zmq, zmq_z85_decode, 0, EINVAL, true)                                    \
    C(zmq, zmq_z85_encode, 0, EINVAL, true)                                    \
    C(ucx, ucp_config_read, UCS_MEMORY, 0, true)                               \
    C(ucx, ucp_config_modify, UCS_MEMORY, 0, true)                             \
    C(ucx, ucp_init_version, UCS_MEMORY, 0, true)                              \
    C(ucx, ucp_context_query, UCS_MEMORY, 0, true)                             \
    C(ucx, ucp_worker_create, UCS_MEMORY, 0, true)                             \
    C(ucx, ucp_worker_query, UCS_MEMORY, 0, true)                              \
    C(ucx, ucp_worker_get_efd, UCS_MEMORY, 0, true)                            \
    C(ucx, ucp_worker_arm, UCS_MEMORY, 0, true)                                \
    C(ucx, ucp_worker_set_am_recv_handler, UCS_MEMORY, 0, true)                \
    C(ucx, ucp_dt_create_generic, UCS_MEMORY, 0, true)                         \
    C(ucx, ucp_ep_create, UCS_MEMORY, 0, true)                                 \
    C(ucx, ucp_mem_map, UCS_MEMORY, 0, true)                                   \
    C(ucx, ucp_am_send_nbx, UCS_MEMORY, 0, true)                               \
    C(ucx, ucp_am_recv_data_nbx, UCS_MEMORY, 0, true)                          \
    C(ucx, uct_query_components, UCS_MEMORY, 0, true)                          \
    C(ucx, uct_component_query, UCS_MEMORY, 0, true)                           \
    C(ucx, uct_md_config_read, UCS_MEMORY, 0, true)                            \
    C(ucx, uct_md_open, UCS_MEMORY, 0, true)                                   \
    C(ucx, uct_md_query_tl_resources, UCS_MEMORY, 0, true)                     \
    C(tls, SSL_CTX_new, 0, 0, true)                                            \
    C(tls, SSL_CTX_set_ciphersuites, 0, 0, true)                               \
    C(tls, SSL_new, 0, 0, true)                                                \
    C(tls, SSL_set_fd, 0, 0, true)                                             \
    C(tls, SSL_set_ex_data, 0, 0, true)                                        \
    C(tls, SSL_SESSION_new, 0, 0, true)                                        \
    C(tls, SSL_SESSION_set1_master_key, 0, 0, true)                            \
    C(tls, SSL_SESSION_set_cipher, 0, 0, true)                                 \
    C(tls, SSL_SESSION_set_protocol_version, 0, 0, true)                       \
    C(tls, EVP_CIPHER_CTX_new, 0, 0, true)                                     \
    C(tls, EVP_CIPHER_CTX_ctrl, 0, 0, true)                                    \
    C(tls, EVP_CipherInit_ex, 0, 0, true)                                      \
    C(tls, EVP_CipherUpdate, 0, 0, true)                                       \
    C(tls, EVP_CipherFinal_ex, 0, 0, true)                                     \
    C(tls, HMAC, 0, 0, true)                                                   \
    C(tls, OPENSSL_hexstr2buf_ex, 0, 0, true)                                  \
    C(disk, open, -1, EMFILE, true)                                            \
    C(disk, __open_2, -1, EMFILE, true)                                        \
    C(disk, fopen, 0, EMFILE, true)                                            \
    C(disk, fdopen, 0, ENOMEM, true)                                           \
    C(disk, read, -1, EIO, is_file((int)a))                                    \
    C(disk, write, -1, ENOSPC, is_file((int)a))                                \
    C(disk, fgets, 0, EIO, true)                                               \
    C(disk, fstat, -1, EIO, true)                                              \
    C(disk, lstat, -1, EIO, true)                                              \
    C(disk, stat, -1, EIO, true)                                               \
    C(disk, access, -1, EIO, true)                                             \
    C(disk, mkdir, -1, ENOSPC, true)                                           \
    C(disk, chmod, -1, EIO, true)                                              \
    C(disk, fchmod, -1, EIO, true)                                             \
    C(disk, chown, -1, EIO, true)                                              \
    C(disk, unlink, -1, EIO, true)                                             \
    C(disk, rmdir, -1, EIO, true)                                              \
    C(disk, glob, 1, ENOMEM, true) /* GLOB_NOSPACE */

#define EMTHREAD_ZMQ (156384712 + 54)

#define AS_KIND(name) KIND_##name,
enum { KINDS(AS_KIND) KINDS_ALL };

#define AS_CALL(kind, name, value, error, if_) CALL_##name,
enum { CALLS(AS_CALL) CALLS_ALL };

/* Read by test/e2e/failing.py. */
struct page {
    _Atomic int64_t held; /* what was allocated and not freed */
    _Atomic int64_t maps;
    _Atomic uint64_t place; /* address of the failed call in the program */
    char failed[40];        /* the failed function; empty: none yet */
    struct {
        char name[16];
        /* fail_at: the number of the call that fails; 0: none */
        _Atomic uint64_t calls, fail_at;
    } kinds[KINDS_ALL];
};

typedef long (*call)(long, long, long, long, long, long, long, long);

static struct page *page;
static uintptr_t program;
static call real[CALLS_ALL], real_free, real_munmap;

static bool is_file(int fd)
{
    struct stat s;

    return fstat(fd, &s) == 0 && S_ISREG(s.st_mode);
}

/* True if this call, of this function from this place in the program, must
 * fail. */
static bool fails(unsigned kind, const char *name, const void *place)
{
    uint64_t n = 1 + atomic_fetch_add(&page->kinds[kind].calls, 1);

    if (n != atomic_load(&page->kinds[kind].fail_at))
        return false;
    atomic_store(&page->place, (uintptr_t)place - program);
    strncpy(page->failed, name, sizeof(page->failed) - 1);
    return true;
}

/* Counts what a call has taken. old, flags: the first and the fourth
 * argument. */
static void take(unsigned i, long old, long flags, long got)
{
    bool memory =
        i == CALL_asprintf || i == CALL___asprintf_chk
            ? got >= 0
            : i <= CALL_open_memstream && got && !(i == CALL_realloc && old);

    if (memory)
        atomic_fetch_add(&page->held, 1);
    if (i == CALL_mmap && got != -1 && !(flags & MAP_FIXED))
        atomic_fetch_add(&page->maps, 1);
}

/* Removes the descriptors from a received message, as the kernel does if the
 * process may open no more. */
static void lose(struct msghdr *m, const void *place)
{
    struct cmsghdr *c = CMSG_FIRSTHDR(m);

    if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len <= CMSG_LEN(0) ||
        !fails(KIND_passing, "recvmsg", place))
        return;
    for (size_t at = 0; CMSG_LEN(at) < c->cmsg_len; at += sizeof(int)) {
        int fd;

        memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
        close(fd);
    }
    m->msg_controllen = 0;
    m->msg_flags |= MSG_CTRUNC;
}

/* Passes on more arguments than the function has, which does no harm: they are
 * registers, or words above the caller's. */
#define AS_FUNCTION(kind, name, value, error, if_)                             \
    static long on_##name(                                                     \
        long a, long b, long c, long d, long e, long f, long g, long h)        \
    {                                                                          \
        const void *place = __builtin_return_address(0);                       \
        long got;                                                              \
                                                                               \
        if ((if_) && fails(KIND_##kind, #name, place)) {                       \
            errno = (error);                                                   \
            return (long)(value);                                              \
        }                                                                      \
        got = real[CALL_##name](a, b, c, d, e, f, g, h);                       \
        take(CALL_##name, a, d, got);                                          \
        if (CALL_##name == CALL_recvmsg && (int)got >= 0)                      \
            lose((struct msghdr *)b, place);                                   \
        return got;                                                            \
    }
CALLS(AS_FUNCTION)

static void on_free(void *p)
{
    if (p)
        atomic_fetch_sub(&page->held, 1);
    real_free((long)p, 0, 0, 0, 0, 0, 0, 0);
}

static long on_munmap(void *p, size_t bytes)
{
    atomic_fetch_sub(&page->maps, 1);
    return real_munmap((long)p, (long)bytes, 0, 0, 0, 0, 0, 0);
}

#define AS_ROW(kind, name, value, error, if_)                                  \
    {#name, &real[CALL_##name], (uintptr_t)on_##name},
static const struct {
    const char *name;
    call *real;
    uintptr_t ours;
} rows[] = {CALLS(AS_ROW){"free", &real_free, (uintptr_t)on_free},
    {"munmap", &real_munmap, (uintptr_t)on_munmap}};

static void change(uintptr_t *slot, const char *name)
{
    uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcmp(rows[i].name, name) != 0)
            continue;
        if (mprotect((void *)((uintptr_t)slot & -size), size,
                PROT_READ | PROT_WRITE) != 0)
            abort();
        *rows[i].real = (call)*slot;
        *slot = rows[i].ours;
    }
}

static void change_all(const ElfW(Rela) * r, size_t bytes,
    const ElfW(Sym) * syms, const char *texts)
{
    for (const ElfW(Rela) *end = r + bytes / sizeof(*r); r < end; r++) {
        size_t symbol = ELF64_R_SYM(r->r_info);

        if (symbol && syms[symbol].st_shndx == SHN_UNDEF)
            change((uintptr_t *)(program + r->r_offset),
                texts + syms[symbol].st_name);
    }
}

/* The first object of the list is the program. */
static int look(struct dl_phdr_info *info, size_t size, void *ud)
{
    ElfW(Addr) at[DT_JMPREL + 1] = {0};
    const ElfW(Dyn) *d = NULL;

    program = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            d = (const void *)(program + info->dlpi_phdr[i].p_vaddr);
    for (; d && d->d_tag != DT_NULL; d++)
        if (d->d_tag <= DT_JMPREL)
            at[d->d_tag] = d->d_un.d_ptr;
    change_all((const void *)at[DT_RELA], at[DT_RELASZ],
        (const void *)at[DT_SYMTAB], (const void *)at[DT_STRTAB]);
    change_all((const void *)at[DT_JMPREL], at[DT_PLTRELSZ],
        (const void *)at[DT_SYMTAB], (const void *)at[DT_STRTAB]);
    return 1;
}

__attribute__((constructor)) static void start(void)
{
    static const char *const names[] = {
#define AS_NAME(name) #name,
        KINDS(AS_NAME)};
    const char *path = getenv("MMX_NTH");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *p = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, sizeof(*page)) == 0)
        p = mmap(
            NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return; /* a child of the program */
    close(fd);
    page = p;
    for (unsigned i = 0; i < KINDS_ALL; i++)
        strncpy(page->kinds[i].name, names[i], sizeof(page->kinds[i].name) - 1);
    dl_iterate_phdr(look, NULL);
}
