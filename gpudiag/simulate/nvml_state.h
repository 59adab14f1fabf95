/*
 * The state file of the simulated library: its layout, and how it is mapped and mapped anew.
 * gpudiag/simulate/answers.py writes it; both change together, with LAYOUT. All numbers are in the
 * machine's own byte order. Included by nvml_library.c alone.
 */

enum { LAYOUT = 2, MAX_STEPS = 8, MAX_ARGUMENTS = 6, MAX_SUBJECTS = 1024 };
enum { NEEDS_DEVICE = 1, ANYTIME = 2, LOOK_UP = 4 };   /* flags of a function */
enum { OCCUPIED = 1, HANGS = 2 };                      /* flags of a slot */
enum { KEY_INT = 1, KEY_MEMBER, KEY_HANDLE, KEY_TEXT, OUT, OUT_TEXT, OUT_HANDLE, COUNT, ARRAY, HANDLES, LIMITED, RECORDS };
static const uint32_t ANY_SUBJECT = 0xfffffffeu, NO_SUBJECT = 0xffffffffu;
static const uint64_t ANY_KEY = 0;

struct header {
    char magic[8];
    uint32_t layout, superseded; /* superseded becomes 1 in place once a newer file has the name */
    uint64_t size;
    uint32_t function_count, slot_count, fault_count, event_count; /* slot_count: a power of two */
    uint64_t functions, slots, faults, events, bytes;              /* offsets in the file */
};
struct step { /* `indirect`: the argument points to a struct that holds the pointer at `offset` */
    uint8_t kind, argument, other, indirect;
    uint32_t size, offset;
};
struct function {
    int32_t default_code;
    uint16_t flags, step_count;
    uint64_t cost_ns; /* of processor time, as a real driver takes; of a call for fields: for each field */
    struct step steps[MAX_STEPS];
};
struct slot {
    uint64_t key;
    uint32_t function, subject;
    int32_t code;
    uint32_t flags, offset, length;
};
enum { HANG = 1, IN_TURN = 2, CRASH = 3 }; /* manners: never answers; ends the process; its delays come one after the other, whoever calls */
struct fault { /* hits calls number `first` to `last` of those that it matches, counted from 1 */
    uint64_t id, delay_ns;
    uint32_t subject;
    int32_t code; /* -1: answers as usual, after the delay */
    uint32_t manner, first, last, functions; /* functions: offset of a bit per function */
};
struct event {
    uint32_t subject, reserved;
    uint64_t type, data;
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static const unsigned char *state; /* the mapped file, or NULL; guarded by the lock */
static char state_path[4096];
static uint64_t *call_counts; /* shared with every program of the machine, or NULL */
static int log_fd = -1;
static int initialized; /* nvmlInit minus nvmlShutdown */
static char handles[MAX_SUBJECTS]; /* a device's handle is the address of its subject's byte */

#define HEADER ((const struct header *)state)
#define AT(type, where) ((const type *)(state + HEADER->where))

static const unsigned char *map_state(void)
{
    int fd = open(state_path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0)
        return NULL;
    void *map = MAP_FAILED;
    if (fstat(fd, &status) == 0 && (size_t)status.st_size >= sizeof(struct header))
        map = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return NULL;
    const struct header *header = map;
    if (memcmp(header->magic, "GPUDNVML", 8) == 0 && header->layout == LAYOUT &&
        header->size == (uint64_t)status.st_size && header->function_count == FUNCTION_COUNT)
        return map;
    munmap(map, status.st_size);
    return NULL;
}

/* Take the lock for reading, with the newest state mapped. */
static void lock_state(void)
{
    pthread_rwlock_rdlock(&lock);
    if (state == NULL || !__atomic_load_n(&HEADER->superseded, __ATOMIC_ACQUIRE))
        return;
    pthread_rwlock_unlock(&lock);
    pthread_rwlock_wrlock(&lock);
    if (HEADER->superseded) {
        const unsigned char *newer = map_state();
        if (newer != NULL) {
            munmap((void *)state, HEADER->size);
            state = newer;
        }
    }
    pthread_rwlock_unlock(&lock);
    pthread_rwlock_rdlock(&lock);
}

static void reset_lock_after_fork(void)
{
    pthread_rwlock_init(&lock, NULL); /* a thread that is not in the child may have held it */
}

__attribute__((constructor)) static void load(void)
{
    Dl_info library;
    char folder[3500], counts_path[4096];
    if (!dladdr((void *)(uintptr_t)load, &library) || strlen(library.dli_fname) >= sizeof folder)
        return;
    strcpy(folder, library.dli_fname);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        return;
    *slash = '\0';
    snprintf(state_path, sizeof state_path, "%s/nvml.state", folder);
    snprintf(counts_path, sizeof counts_path, "%s/nvml.counts", folder);
    state = map_state();

    struct stat status;
    int fd = open(counts_path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        if (fstat(fd, &status) == 0 && (size_t)status.st_size >= FUNCTION_COUNT * sizeof *call_counts) {
            void *map = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            call_counts = map == MAP_FAILED ? NULL : map;
        }
        close(fd);
    }
    const char *log_path = getenv("GPUDIAG_SIMULATED_CALL_LOG");
    if (log_path != NULL && *log_path != '\0')
        log_fd = open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    pthread_atfork(NULL, NULL, reset_lock_after_fork);
}

static uint32_t subject_of(uintptr_t handle)
{
    uintptr_t first = (uintptr_t)handles;
    return handle >= first && handle < first + MAX_SUBJECTS ? (uint32_t)(handle - first) : NO_SUBJECT;
}
