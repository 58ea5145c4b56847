/* A disk that records unsynced writes, so that a power loss can be simulated after the process was killed.
 *
 * Preloaded, this library sits between the program and the C library. It records each write to a file whose name begins with
 * LIVENESS_TEST_POWER_FILE, except its shared memory, in the journal named by LIVENESS_TEST_POWER_JOURNAL, with the bytes that
 * the write replaces; it records each sync after it is done. Records are
 *
 *     kind ('w' write, 't' truncate, 's' sync), length of the name, offset, size, bytes replaced, size of the file before
 *     name, bytes replaced, bytes written
 *
 * The journal is an ordinary file: it only has to survive the end of the process.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct record {
    int64_t kind, name_size, offset, size, replaced, size_before;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int journal = -2;

static void open_journal(void) {
    const char *path = getenv("LIVENESS_TEST_POWER_JOURNAL");
    journal = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* Store the file's name, and return whether the file is recorded. */
static int is_watched(int file, char name[PATH_MAX]) {
    const char *watched = getenv("LIVENESS_TEST_POWER_FILE");
    if (watched == NULL) return 0;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, name, PATH_MAX - 1);
    if (size <= 0) return 0;
    name[size] = '\0';
    size_t length = strlen(watched);
    if (strncmp(name, watched, length) != 0) return 0;
    return strcmp(name + length, "") == 0 || strcmp(name + length, "-wal") == 0;
}

static void note(int64_t kind, int file, const char *name, const void *data, int64_t size, int64_t offset) {
    if (journal == -2) open_journal();
    if (journal < 0) return;
    struct stat seen;
    if (fstat(file, &seen) != 0) abort();
    struct record record = {kind, (int64_t)strlen(name), offset, size, 0, seen.st_size};
    char *old = NULL;
    int64_t until = kind == 'w' ? offset + size : seen.st_size;
    if (kind != 's' && until > offset && seen.st_size > offset) {
        old = malloc((size_t)(until - offset));
        ssize_t got = syscall(SYS_pread64, file, old, (size_t)(until - offset), offset);
        if (got < 0) abort();
        record.replaced = got;
    }
    struct iovec parts[] = {
        {&record, sizeof record},
        {(void *)name, (size_t)record.name_size},
        {old, (size_t)record.replaced},
        {(void *)data, kind == 'w' ? (size_t)size : 0},
    };
    ssize_t whole = 0;
    for (int part = 0; part < 4; part++) whole += (ssize_t)parts[part].iov_len;
    if (writev(journal, parts, 4) != whole) abort();
    free(old);
}

typedef ssize_t (*write_at)(int, const void *, size_t, off_t);

static ssize_t write_through(const char *function, int file, const void *data, size_t size, off_t offset) {
    write_at real = (write_at)dlsym(RTLD_NEXT, function);
    char name[PATH_MAX];
    if (!is_watched(file, name)) return real(file, data, size, offset);
    pthread_mutex_lock(&lock);
    note('w', file, name, data, (int64_t)size, offset);
    ssize_t written = real(file, data, size, offset);
    pthread_mutex_unlock(&lock);
    return written;
}

ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
    return write_through("pwrite", file, data, size, offset);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
    return write_through("pwrite64", file, data, size, offset);
}

static int truncate_through(const char *function, int file, off_t size) {
    int (*real)(int, off_t) = (int (*)(int, off_t))dlsym(RTLD_NEXT, function);
    char name[PATH_MAX];
    if (!is_watched(file, name)) return real(file, size);
    pthread_mutex_lock(&lock);
    note('t', file, name, NULL, 0, size);
    int result = real(file, size);
    pthread_mutex_unlock(&lock);
    return result;
}

int ftruncate(int file, off_t size) { return truncate_through("ftruncate", file, size); }

int ftruncate64(int file, off64_t size) { return truncate_through("ftruncate64", file, size); }

static int sync_through(const char *function, int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, function);
    char name[PATH_MAX];
    int watched = is_watched(file, name);
    int result = real(file);
    if (watched && result == 0) {
        /* A sync covers only the writes before it; SQLite writes and syncs on one thread, so their order is known. */
        pthread_mutex_lock(&lock);
        note('s', file, name, NULL, 0, 0);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

int fsync(int file) { return sync_through("fsync", file); }

int fdatasync(int file) { return sync_through("fdatasync", file); }
