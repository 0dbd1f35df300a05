/* A driver without a GPU, as far as actors/keeper/driver.py calls one: device memory is a memory file, a handle is a
   descriptor of it, an address that of a mapping. What it is called with has to be as CUDA's headers say. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct { int type, id; } location;
typedef struct {
    int type, handles;
    location place;
    void *windows;
    struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
} properties;
typedef struct { location place; int flags; } access_desc;
enum { OK = 0, INVALID = 1, NO_MEMORY = 2 };
#define GRAIN ((size_t)2 << 20)

static int good(const properties *p) {
    return p->type == 1 && p->handles == 1 && p->place.type == 1 && p->place.id >= 0 && p->place.id < 8 && !p->windows;
}
int cuInit(unsigned flags) { return flags ? INVALID : OK; }
int cuGetErrorString(int error, const char **said) {
    *said = error == NO_MEMORY ? "out of memory" : "invalid argument";
    return OK;
}
int cuMemGetAllocationGranularity(size_t *found, const properties *p, int which) {
    if (!good(p) || which) return INVALID;
    *found = GRAIN;
    return OK;
}
int cuMemCreate(unsigned long long *handle, size_t size, const properties *p, unsigned long long flags) {
    if (!good(p) || flags || !size || size % GRAIN) return INVALID;
    if (size > (size_t)1 << 30) return NO_MEMORY;
    int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, size)) return NO_MEMORY;
    char *place = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (size_t at = 0; at < size; at += 4096) place[at] = 7; /* it is not zeros */
    munmap(place, size);
    *handle = fd;
    return OK;
}
int cuMemExportToShareableHandle(void *out, unsigned long long handle, int type, unsigned long long flags) {
    if (type != 1 || flags) return INVALID;
    int fd = fcntl((int)handle, F_DUPFD_CLOEXEC, 3);
    if (fd < 0) return INVALID;
    *(int *)out = fd;
    return OK;
}
int cuMemImportFromShareableHandle(unsigned long long *handle, void *place, int type) {
    if (type != 1) return INVALID;
    int fd = fcntl((int)(uintptr_t)place, F_DUPFD_CLOEXEC, 3);
    if (fd < 0) return INVALID;
    *handle = fd;
    return OK;
}
int cuMemAddressReserve(uint64_t *at, size_t size, size_t align, uint64_t wish, unsigned long long flags) {
    if (!size || size % GRAIN || align || wish || flags) return INVALID;
    void *place = mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *at = (uint64_t)place;
    return place == MAP_FAILED ? NO_MEMORY : OK;
}
int cuMemMap(uint64_t at, size_t size, size_t offset, unsigned long long handle, unsigned long long flags) {
    struct stat about;
    if (offset || flags || fstat((int)handle, &about) || (size_t)about.st_size != size) return INVALID;
    void *place = mmap((void *)at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, 0);
    return place == MAP_FAILED ? NO_MEMORY : OK;
}
int cuMemSetAccess(uint64_t at, size_t size, const access_desc *wish, size_t count) {
    if (count != 1 || wish->place.type != 1 || wish->flags != 3) return INVALID;
    return mprotect((void *)at, size, PROT_READ | PROT_WRITE) ? INVALID : OK;
}
int cuMemUnmap(uint64_t at, size_t size) {
    void *place = mmap((void *)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return place == MAP_FAILED ? INVALID : OK;
}
int cuMemAddressFree(uint64_t at, size_t size) { return munmap((void *)at, size) ? INVALID : OK; }
int cuMemRelease(unsigned long long handle) { return close((int)handle) ? INVALID : OK; }
