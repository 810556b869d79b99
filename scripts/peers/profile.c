// A plugin of qemu that counts the instructions which the guest's processor executes, by where they lie. The guest makes the file
// profile.begin in a directory to begin, and profile.end to have the counts, as lines of "address count" in the file profile. Each goes away when that is done.
// What qemu offers is declared here, as Debian has no header for it; qemu 7.2 and later have these functions.
#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct qemu_plugin_tb;
typedef void (*translated)(uint64_t id, struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, translated);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int add, void *counter, uint64_t amount);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);

int qemu_plugin_version = 1;

// A block of code that was translated. Counters stay where they are, as translated code has their addresses.
struct block {
    uint64_t count, address;
    struct block *next;
};
static _Atomic(struct block *) blocks;
static const char *directory;

static void translate(uint64_t id, struct qemu_plugin_tb *code) {
    (void)id;
    struct block *block = calloc(1, sizeof *block);
    if (!block) abort();
    block->address = qemu_plugin_tb_vaddr(code);
    block->next = blocks;
    blocks = block;
    qemu_plugin_register_vcpu_tb_exec_inline(code, 0, &block->count, qemu_plugin_tb_n_insns(code));
}

static int asked(const char *what) {
    char path[4096];
    snprintf(path, sizeof path, "%s/profile.%s", directory, what);
    return access(path, F_OK) == 0;
}

static void done(const char *what) {
    char path[4096];
    snprintf(path, sizeof path, "%s/profile.%s", directory, what);
    unlink(path);
}

static void *answer(void *unused) {
    for (;; usleep(500)) {
        if (asked("begin")) {
            for (struct block *block = blocks; block; block = block->next) block->count = 0;
            done("begin");
        }
        if (asked("end")) {
            char path[4096];
            snprintf(path, sizeof path, "%s/profile", directory);
            FILE *file = fopen(path, "w");
            for (struct block *block = blocks; file && block; block = block->next)
                if (block->count) fprintf(file, "%" PRIx64 " %" PRIu64 "\n", block->address, block->count);
            if (!file || fclose(file)) perror(path);
            done("end");
        }
    }
    return unused;
}

int qemu_plugin_install(uint64_t id, const void *machine, int count, char **arguments) {
    (void)machine;
    pthread_t thread;
    if (count != 1) return 1;
    directory = arguments[0] + sizeof "directory=" - 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
    return pthread_create(&thread, NULL, answer, NULL);
}
