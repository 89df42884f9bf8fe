/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded before the C library (LD_PRELOAD): each sync takes SLOW_SYNC_US longer, of whatever process it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static void wait_longer(void) {
    const char *text = getenv("SLOW_SYNC_US");
    long us = text ? atol(text) : 0;
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&left, &left) != 0) {
    }
}

static int slowly(const char *name, int fd) {
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    wait_longer();
    return sync(fd);
}

int fdatasync(int fd) { return slowly("fdatasync", fd); }
int fsync(int fd) { return slowly("fsync", fd); }
