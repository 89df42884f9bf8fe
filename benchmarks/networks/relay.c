// SPDX-License-Identifier: Apache-2.0
// A cable between two TAP devices, which holds each frame for a while and loses some: relay FD FD DELAY_US LOSS_PPM.
// For kernels without netem and netfilter. It ends when its input does; a frame that finds no room is lost as well.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { FRAME_MAX = 2048, SLOTS = 8192, BURST = 64 };

struct frame {
    int64_t due_ns;
    ssize_t size;
    char bytes[FRAME_MAX];
};

struct direction {
    int from, to;
    unsigned first, count;
    struct frame *frames;
};

static uint64_t dice = 0x9e3779b97f4a7c15u;

static int lost(uint64_t loss_ppm) {
    dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
    return dice % 1000000 < loss_ppm;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void receive(struct direction *way, int64_t delay_ns, uint64_t loss_ppm) {
    for (int n = 0; n < BURST; n++) {
        static char nowhere[FRAME_MAX];
        struct frame *frame = way->count < SLOTS ? &way->frames[(way->first + way->count) % SLOTS] : NULL;
        ssize_t size = read(way->from, frame ? frame->bytes : nowhere, FRAME_MAX);
        if (size <= 0)
            return;
        if (!frame || lost(loss_ppm))
            continue;
        frame->due_ns = now_ns() + delay_ns;
        frame->size = size;
        way->count++;
    }
}

// Sends what is due; returns when the next frame is, or the latest time there is.
static int64_t send_due(struct direction *way) {
    while (way->count) {
        struct frame *frame = &way->frames[way->first];
        if (frame->due_ns > now_ns())
            return frame->due_ns;
        (void)!write(way->to, frame->bytes, frame->size);
        way->first = (way->first + 1) % SLOTS;
        way->count--;
    }
    return INT64_MAX;
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    int a = atoi(argv[1]), b = atoi(argv[2]);
    int64_t delay_ns = atoll(argv[3]) * 1000;
    uint64_t loss_ppm = strtoull(argv[4], NULL, 10);
    struct direction ways[2] = {{.from = a, .to = b}, {.from = b, .to = a}};
    for (int n = 0; n < 2; n++)
        if (!(ways[n].frames = malloc(SLOTS * sizeof(struct frame))))
            return 1;
    for (;;) {
        int64_t next = send_due(&ways[0]), other = send_due(&ways[1]);
        next = other < next ? other : next;
        int64_t wait_ns = next == INT64_MAX ? 1000000000 : next - now_ns();
        struct timespec wait = {.tv_sec = 0, .tv_nsec = wait_ns < 0 ? 0 : wait_ns > 999999999 ? 999999999 : wait_ns};
        struct pollfd polled[3] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
        if (ppoll(polled, 3, &wait, NULL) < 0 && errno != EINTR)
            return 1;
        if (polled[2].revents)
            return 0;
        for (int n = 0; n < 2; n++)
            if (polled[n].revents)
                receive(&ways[n], delay_ns, loss_ppm);
    }
}
