/* Memory of this process, as a file has it from now on. It is in C since nothing may be written to that memory between
   its copying and its mapping, as an interpreter does with each of its steps. */

#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* Bytes of a write. The page cache keeps those of one together, and whoever touches one page gets all of them mapped. */
enum { CHUNK = 1 << 14 };

/* Bytes of zeros behind what is written, which take no room. Where realloc lets a block of its own grow, the kernel maps
   what follows in the file, and who touches a page behind a file's end is killed. */
#define ROOM ((uint64_t)1 << 40)

/* File systems in memory, from which the kernel can drop nothing, and over a network, where pages may not come back:
   tmpfs, ramfs, NFS, CIFS, SMB, FUSE, 9p, Ceph. */
static const uint32_t unfit[] = {0x01021994, 0x858458f6, 0x6969, 0xff534d42, 0xfe534d42, 0x65735546, 0x01021997, 0x00c36400};

static int is_fit(int file)
{
    struct statfs system;
    if (fstatfs(file, &system))
        return 0;
    for (unsigned i = 0; i < sizeof unfit / sizeof *unfit; i++)
        if ((uint32_t)system.f_type == unfit[i])
            return 0;
    return 1;
}

static int64_t milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* -1: not all of it, for want of room, or since a disk with much to write makes the writer wait. */
static int write_all(int file, const char *from, uint64_t bytes, uint64_t at, int64_t until)
{
    while (bytes) {
        ssize_t written = pwrite(file, from, bytes < CHUNK ? bytes : CHUNK, at);
        if (written <= 0 || milliseconds() > until)
            return -1;
        from += written, at += written, bytes -= written;
    }
    return 0;
}

/* `ranges`: an address and a number of bytes each, whole pages. Returns how many bytes are the file's now; the memory
   of those ranges that could not be written, in `limit` ms for all, is as it was. */
int64_t map_from_file(int file, const uint64_t *ranges, int64_t count, int64_t limit)
{
    uint64_t done = 0;
    int64_t until = milliseconds() + limit;
    if (!is_fit(file))
        return 0;
    for (int64_t i = 0; i < count; i++) {
        char *from = (char *)ranges[2 * i];
        uint64_t bytes = ranges[2 * i + 1];
        if (write_all(file, from, bytes, done, until))
            break;
        if (mmap(from, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, done) == MAP_FAILED)
            break;
        done += bytes;
    }
    if (!done || !ftruncate(file, done + ROOM))
        return done;
    return ftruncate(file, done) ? -1 : (int64_t)done; /* a file system whose files are smaller, or a limit */
}
