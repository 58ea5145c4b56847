/* A faulty disk, as one process sees it: preloaded, this library sits between the program and the C library.
 *
 * The file named by LIVENESS_TEST_DISK is read before each write and sync, so that a test can break and
 * repair the disk of a running server:
 *
 *     fail        syncing fails with EIO
 *     delay MS    syncing takes this much longer
 *     full        writing at an offset fails with ENOSPC
 *     (else)      no fault
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { WORD_MAX = 64 };

static void read_word(char word[WORD_MAX]) {
    word[0] = '\0';
    const char *path = getenv("LIVENESS_TEST_DISK");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    ssize_t size = read(file, word, WORD_MAX - 1);
    word[size > 0 ? size : 0] = '\0';
    close(file);
}

static int sync_through(const char *name, int file) {
    char word[WORD_MAX];
    read_word(word);
    if (strncmp(word, "fail", 4) == 0) {
        errno = EIO;
        return -1;
    }
    if (strncmp(word, "delay ", 6) == 0) {
        long ms = strtol(word + 6, NULL, 10);
        struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
        while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(file);
}

int fsync(int file) { return sync_through("fsync", file); }

int fdatasync(int file) { return sync_through("fdatasync", file); }

typedef ssize_t (*write_at)(int, const void *, size_t, off_t);

static ssize_t write_through(const char *name, int file, const void *data, size_t size, off_t offset) {
    char word[WORD_MAX];
    read_word(word);
    if (strncmp(word, "full", 4) == 0) {
        errno = ENOSPC;
        return -1;
    }
    return ((write_at)dlsym(RTLD_NEXT, name))(file, data, size, offset);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
    return write_through("pwrite", file, data, size, offset);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
    return write_through("pwrite64", file, data, size, offset);
}
