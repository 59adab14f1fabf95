/*
 * A simulated libnvidia-ml.so.1: every symbol that an NVML program can ask for, answering from a
 * state file that lies beside this library (nvml.state). There is no fact about any GPU in here:
 * gpudiag/simulate/nvml/answers.py writes the file and documents its layout.
 *
 * A call is one look-up in a hash table: (function, subject, key) -> a return code and some bytes.
 * The subject is the GPU or MIG device whose handle is the first argument. The key is made of the
 * other arguments that go in; the function's steps list them, and where the bytes come out.
 *
 * nvml_symbols.inc is made by gpudiag/simulate/nvml/library.py from gpudiag/reference/nvml_symbols.json:
 * NVML_FUNCTIONS(X) lists the exported names without their `nvml`, NVML_RETURNS(X) the return texts.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "nvml_symbols.inc"

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7,
       TIMEOUT = 10, UNKNOWN = 999 };

#define INDEX(name) FN_##name,
enum { NVML_FUNCTIONS(INDEX) FUNCTION_COUNT };
#define NAME(name) #name,
static const char *const names[] = { NVML_FUNCTIONS(NAME) };

#include "nvml_state.h"

/* ---- Keys ---- */

static uint64_t mix(uint64_t hash, uint64_t part)
{
    return (hash ^ part) * 0x100000001b3u; /* FNV-1a, a whole part at a time */
}

static const uint64_t HASH_SEED = 0xcbf29ce484222325u;

static uint64_t hash_text(const char *text)
{
    uint64_t hash = HASH_SEED;
    for (; *text != '\0'; text++) /* bus ids come in either case */
        hash = mix(hash, (unsigned char)(*text >= 'A' && *text <= 'Z' ? *text + 32 : *text));
    return hash;
}

/* The place that a step talks about: the argument itself, or what it points to plus the offset. */
static unsigned char *place(const struct step *step, const uintptr_t *arguments)
{
    unsigned char *base = (unsigned char *)arguments[step->argument];
    if (base == NULL || !step->indirect)
        return base == NULL ? NULL : base + step->offset;
    unsigned char *target;
    memcpy(&target, base + step->offset, sizeof target);
    return target;
}

/* The key of a call in *key; false where a pointer that must be there is NULL. */
static int make_key(const struct function *function, const uintptr_t *arguments, uint64_t *key)
{
    *key = HASH_SEED;
    for (int i = 0; i < function->step_count; i++) {
        const struct step *step = &function->steps[i];
        uint64_t part = arguments[step->argument];
        if (step->kind == KEY_INT) {
            part = step->size == 4 ? (uint32_t)part : part;
        } else if (step->kind == KEY_MEMBER) { /* of the struct that the argument points to */
            const unsigned char *member = place(step, arguments);
            if (member == NULL)
                return 0;
            part = 0;
            memcpy(&part, member, step->size); /* little-endian, as all machines with NVML are */
        } else if (step->kind == KEY_HANDLE) {
            part = subject_of(part);
        } else if (step->kind == KEY_TEXT) {
            if (part == 0)
                return 0;
            part = hash_text((const char *)part + step->offset);
        } else {
            continue;
        }
        *key = mix(*key, part);
    }
    return 1;
}

static const struct slot *find_slot(uint32_t function, uint32_t subject, uint64_t key)
{
    uint64_t hash = key ^ function * 0x9e3779b97f4a7c15u ^ subject * 0xc2b2ae3d27d4eb4fu;
    const struct slot *slots = AT(struct slot, slots);
    uint32_t mask = HEADER->slot_count - 1;
    for (uint32_t i = (uint32_t)(hash ^ hash >> 29) & mask; slots[i].flags & OCCUPIED; i = (i + 1) & mask)
        if (slots[i].key == key && slots[i].function == function && slots[i].subject == subject)
            return &slots[i];
    return NULL;
}

static const struct slot *find_answer(uint32_t function, uint32_t subject, uint64_t key)
{
    const struct slot *slot = find_slot(function, subject, key);
    return slot != NULL ? slot : find_slot(function, subject, ANY_KEY);
}

/* ---- Faults ---- */

struct verdict {
    uint64_t delay_ns;
    int manner, code; /* code -1: answer as usual */
};

/* How many calls each fault has matched in this process, by the fault's id: it outlives an update. */
static uint32_t count_match(uint64_t id)
{
    static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
    static struct { uint64_t id; uint32_t count; } matches[1024];
    uint32_t count = 1;
    pthread_mutex_lock(&guard);
    for (uint32_t probe = 0; probe < 1024; probe++) {
        uint32_t i = (uint32_t)(id + probe) & 1023;
        if (matches[i].count == 0 || matches[i].id == id) {
            matches[i].id = id;
            count = ++matches[i].count;
            break;
        }
    }
    pthread_mutex_unlock(&guard);
    return count;
}

/* The result of the first fault that hits this call. `*` spares look-ups: Python leaves their bits out. */
static struct verdict judge_call(uint32_t function, uint32_t subject)
{
    struct verdict verdict = { 0, 0, -1 };
    const struct fault *faults = AT(struct fault, faults);
    int decided = 0;
    for (uint32_t i = 0; i < HEADER->fault_count; i++) {
        const struct fault *fault = &faults[i];
        const unsigned char *functions = state + fault->functions;
        if (!(functions[function / 8] >> function % 8 & 1) ||
            (fault->subject != ANY_SUBJECT && fault->subject != subject))
            continue;
        uint32_t number = count_match(fault->id);
        if (decided || number < fault->first || number > fault->last)
            continue;
        decided = 1;
        verdict = (struct verdict){ fault->delay_ns, (int)fault->manner, fault->code };
    }
    return verdict;
}

/* Never come back: as a call into a stuck driver, no signal but SIGKILL gets through. */
static void hang(void)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (;;)
        pause();
}

static void sleep_ns(uint64_t ns)
{
    struct timespec left = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

/* Take so much of the processor's time: a driver polls the GPU's own processor, it does not sleep. */
static void burn_ns(uint64_t ns)
{
    struct timespec now;
    if (ns == 0)
        return;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    uint64_t until = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + ns;
    do
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec < until);
}

static void delay(const struct verdict *verdict)
{
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    if (verdict->manner == IN_TURN)
        pthread_mutex_lock(&turn);
    sleep_ns(verdict->delay_ns);
    if (verdict->manner == IN_TURN)
        pthread_mutex_unlock(&turn);
}

/* ---- Answers ---- */

static int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* nvmlDeviceGetFieldValues: an array of records {u32 field, u32 scope, i64 timestamp_us, i64 latency,
 * u32 type, u32 code, 8 bytes}; each has its own code. Returns whether one of the fields hangs. */
static int fill_records(uint32_t function, uint32_t subject, unsigned char *records, uint32_t count)
{
    enum { SIZE = 40, SCOPE = 4, TIMESTAMP = 8, ANSWER = 24, CODE = 28, ANY_SCOPE = 0xffffffff };
    int64_t now = now_us();
    for (uint32_t i = 0; i < count; i++) {
        unsigned char *record = records + (size_t)i * SIZE;
        uint32_t field, scope, code = NOT_SUPPORTED;
        memcpy(&field, record, sizeof field);
        memcpy(&scope, record + SCOPE, sizeof scope);
        const struct slot *slot = find_slot(function, subject, mix(mix(HASH_SEED, field), scope));
        if (slot == NULL)
            slot = find_slot(function, subject, mix(mix(HASH_SEED, field), ANY_SCOPE));
        if (slot != NULL && slot->flags & HANGS)
            return 1;
        memcpy(record + TIMESTAMP, &now, sizeof now);
        if (slot != NULL && slot->code == SUCCESS && slot->length == SIZE - ANSWER) {
            memcpy(record + ANSWER, state + HEADER->bytes + slot->offset, slot->length);
        } else {
            code = slot != NULL ? (uint32_t)slot->code : code;
            memcpy(record + CODE, &code, sizeof code);
        }
    }
    return 0;
}

struct output { /* what is left of an answer's bytes, and how many elements its arrays have */
    const unsigned char *bytes;
    uint32_t left, elements;
};

static void put(struct output *output, unsigned char *target, uint32_t size)
{
    size = size < output->left ? size : output->left;
    if (target != NULL)
        memcpy(target, output->bytes, size);
    output->bytes += size;
    output->left -= size;
}

static void put_handle(struct output *output, unsigned char *target)
{
    uint32_t subject = 0;
    put(output, (unsigned char *)&subject, sizeof subject);
    const char *handle = &handles[subject % MAX_SUBJECTS];
    if (target != NULL)
        memcpy(target, &handle, sizeof handle);
}

/* The count that goes in is room for so many; what comes out is how many there are. Too little room
 * is INSUFFICIENT_SIZE; where `fills_room`, 0 only asks for the number and else the room is filled. */
static int put_count(struct output *output, unsigned char *target, int fills_room)
{
    uint32_t room, there = 0;
    put(output, (unsigned char *)&there, sizeof there);
    if (target == NULL)
        return INVALID_ARGUMENT;
    memcpy(&room, target, sizeof room);
    output->elements = room < there ? room : there;
    uint32_t count = fills_room && room != 0 ? output->elements : there;
    memcpy(target, &count, sizeof count);
    return room < there && !fills_room ? INSUFFICIENT_SIZE : SUCCESS;
}

static int put_step(struct output *output, const struct step *step, const uintptr_t *arguments)
{
    unsigned char *target = place(step, arguments);
    uint32_t room = (uint32_t)arguments[step->other];
    switch (step->kind) {
    case OUT:
        put(output, target, step->size != 0 ? step->size : output->left);
        return SUCCESS;
    case OUT_TEXT:
        if (room < output->left)
            return INSUFFICIENT_SIZE;
        put(output, target, output->left);
        return SUCCESS;
    case OUT_HANDLE:
        put_handle(output, target);
        return SUCCESS;
    case COUNT:
        return put_count(output, target, step->size != 0);
    case ARRAY:
        put(output, target, output->elements * step->size);
        return SUCCESS;
    case HANDLES:
        for (uint32_t i = 0; i < output->elements; i++)
            put_handle(output, target == NULL ? NULL : target + i * sizeof(void *));
        return SUCCESS;
    case LIMITED:
        if (target != NULL)
            memset(target, 0, (size_t)room * step->size);
        put(output, target, room * step->size);
        return SUCCESS;
    default:
        return SUCCESS;
    }
}

/* The return code of a call, with its outputs written; -1 where the answer is that it hangs. */
static int answer_call(uint32_t index, uint32_t subject, const uintptr_t *arguments)
{
    const struct function *function = AT(struct function, functions) + index;
    uint64_t key;
    if (function->step_count > 0 && function->steps[0].kind == RECORDS) {
        const struct step *step = &function->steps[0];
        uint32_t count = (uint32_t)arguments[step->other];
        if (arguments[step->argument] == 0 || count == 0)
            return INVALID_ARGUMENT;
        return fill_records(index, subject, (unsigned char *)arguments[step->argument], count) ? -1 : SUCCESS;
    }
    if (!make_key(function, arguments, &key))
        return INVALID_ARGUMENT;
    const struct slot *slot = find_answer(index, subject, key);
    if (slot == NULL)
        return function->default_code;
    if (slot->flags & HANGS)
        return -1;
    struct output output = { state + HEADER->bytes + slot->offset, slot->length, 0 };
    int code = slot->code;
    for (int i = 0; i < function->step_count && code == SUCCESS; i++)
        code = put_step(&output, &function->steps[i], arguments);
    return code;
}

/* What the call costs; one that asks for fields costs it for each of them. */
static uint64_t cost_of(uint32_t index, const uintptr_t *arguments)
{
    const struct function *function = AT(struct function, functions) + index;
    const struct step *step = &function->steps[0];
    if (function->step_count > 0 && step->kind == RECORDS)
        return function->cost_ns * (uint32_t)arguments[step->other];
    return function->cost_ns;
}

/* The GPU that a look-up would find, so that its faults can hit the look-up. */
static uint32_t looked_up_subject(uint32_t index, uint32_t subject, const uintptr_t *arguments)
{
    uint64_t key;
    uint32_t found = NO_SUBJECT;
    if (!make_key(AT(struct function, functions) + index, arguments, &key))
        return found;
    const struct slot *slot = find_answer(index, subject, key);
    if (slot != NULL && slot->code == SUCCESS && slot->length >= sizeof found)
        memcpy(&found, state + HEADER->bytes + slot->offset, sizeof found);
    return found;
}

#include "nvml_events.h"
#include "nvml_gpm.h"

/* ---- One call ---- */

static void log_call(uint32_t index, uint32_t subject, int code)
{
    char line[200], who[16] = "-", result[16] = "hang";
    struct timespec now;
    if (log_fd < 0)
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (subject != NO_SUBJECT)
        snprintf(who, sizeof who, "%u", subject);
    if (code >= 0)
        snprintf(result, sizeof result, "%d", code);
    int length = snprintf(line, sizeof line, "%lld.%09ld %d nvml%s %s %s\n", (long long)now.tv_sec, now.tv_nsec,
                          (int)getpid(), names[index], who, result);
    if (write(log_fd, line, (size_t)length) < 0)
        return; /* a log that cannot be written is no fault of the GPU */
}

static int is_init(uint32_t index)
{
    return index == FN_Init || index == FN_Init_v2 || index == FN_InitWithFlags;
}

static int is_event_function(uint32_t index)
{
    return index == FN_EventSetCreate || index == FN_EventSetFree || index == FN_EventSetWait ||
           index == FN_EventSetWait_v2 || index == FN_DeviceRegisterEvents;
}

static int carry_out(uint32_t index, uint32_t subject, const uintptr_t *arguments)
{
    if (is_event_function(index))
        return call_event_function(index, subject, arguments);
    if (is_gpm_function(index))
        return call_gpm_function(index, subject, arguments);
    if (index == FN_Shutdown) {
        __atomic_fetch_sub(&initialized, 1, __ATOMIC_SEQ_CST);
        return SUCCESS;
    }
    lock_state();
    int code = state == NULL ? UNKNOWN : answer_call(index, subject, arguments);
    pthread_rwlock_unlock(&lock);
    if (is_init(index) && code == SUCCESS)
        __atomic_fetch_add(&initialized, 1, __ATOMIC_SEQ_CST);
    return code;
}

static intptr_t call(uint32_t index, const uintptr_t *arguments)
{
    uint32_t subject = subject_of(arguments[0]);
    struct verdict verdict = { 0, 0, -1 };
    uint64_t cost_ns = 0;
    int code = -1;
    if (call_counts != NULL)
        __atomic_fetch_add(&call_counts[index], 1, __ATOMIC_RELAXED);
    lock_state();
    if (state == NULL) {
        code = UNKNOWN;
    } else {
        uint16_t flags = AT(struct function, functions)[index].flags;
        subject = flags & NEEDS_DEVICE ? subject : NO_SUBJECT;
        if (!(flags & ANYTIME) && __atomic_load_n(&initialized, __ATOMIC_SEQ_CST) <= 0)
            code = UNINITIALIZED;
        else if (flags & NEEDS_DEVICE && subject == NO_SUBJECT)
            code = INVALID_ARGUMENT;
        else
            verdict = judge_call(index, flags & LOOK_UP ? looked_up_subject(index, subject, arguments) : subject);
        /* what is initialized already, and an argument that cannot be, cost nothing */
        if (code < 0 && !(is_init(index) && __atomic_load_n(&initialized, __ATOMIC_SEQ_CST) > 0))
            cost_ns = cost_of(index, arguments);
    }
    pthread_rwlock_unlock(&lock);
    if (verdict.manner == HANG) {
        log_call(index, subject, -1);
        hang();
    }
    if (verdict.manner == CRASH) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    burn_ns(cost_ns);
    if (verdict.delay_ns != 0)
        delay(&verdict);
    if (code < 0)
        code = verdict.code >= 0 ? verdict.code : carry_out(index, subject, arguments);
    log_call(index, subject, code);
    if (code < 0)
        hang();
    return code;
}

#define RETURN_TEXT(code, text) case code: return text;
static const char *return_text(int code)
{
    switch (code) {
        NVML_RETURNS(RETURN_TEXT)
    }
    return "Unknown Error";
}

/* Every function takes up to six integers or pointers; those that the caller did not pass hold what
 * the registers held and are not looked at. nvmlErrorString alone returns a pointer. */
#define EXPORT(name)                                                                                        \
    __attribute__((visibility("default"))) intptr_t nvml##name(uintptr_t a, uintptr_t b, uintptr_t c,       \
                                                               uintptr_t d, uintptr_t e, uintptr_t f)       \
    {                                                                                                       \
        const uintptr_t arguments[MAX_ARGUMENTS] = { a, b, c, d, e, f };                                    \
        if (FN_##name == FN_ErrorString)                                                                    \
            return (intptr_t)return_text((int)a);                                                           \
        return call(FN_##name, arguments);                                                                  \
    }
NVML_FUNCTIONS(EXPORT)
