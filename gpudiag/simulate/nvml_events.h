/*
 * Event sets of the simulated library: each receives every event of its devices once, in order.
 * Included by nvml_library.c alone.
 */

enum { MAX_SETS = 64 };
static pthread_mutex_t sets_lock = PTHREAD_MUTEX_INITIALIZER;
static struct event_set {
    int used;
    uint32_t passed; /* events of the list that it has received or that are not of its devices */
    uint64_t masks[MAX_SUBJECTS];
} sets[MAX_SETS];

static struct event_set *set_of(uintptr_t handle)
{
    for (int i = 0; i < MAX_SETS; i++)
        if (handle == (uintptr_t)&sets[i] && sets[i].used)
            return &sets[i];
    return NULL;
}

static int create_set(uintptr_t *target)
{
    for (int i = 0; target != NULL && i < MAX_SETS; i++) {
        if (!sets[i].used) {
            memset(&sets[i], 0, sizeof sets[i]);
            sets[i].used = 1;
            *target = (uintptr_t)&sets[i];
            return SUCCESS;
        }
    }
    return target == NULL ? INVALID_ARGUMENT : UNKNOWN;
}

static int next_event(struct event_set *set, unsigned char *target, int with_instances)
{
    const struct event *events = AT(struct event, events);
    while (set->passed < HEADER->event_count) {
        const struct event *event = &events[set->passed++];
        if (!(set->masks[event->subject % MAX_SUBJECTS] & event->type))
            continue;
        const char *device = &handles[event->subject % MAX_SUBJECTS];
        uint32_t no_instance[2] = { 0xffffffff, 0xffffffff };
        memcpy(target, &device, sizeof device);
        memcpy(target + 8, &event->type, 8);
        memcpy(target + 16, &event->data, 8);
        if (with_instances)
            memcpy(target + 24, no_instance, sizeof no_instance);
        return 1;
    }
    return 0;
}

static int wait_for_event(uintptr_t handle, unsigned char *target, uint32_t timeout_ms, int with_instances)
{
    const uint32_t poll_ms = 50;
    for (uint64_t waited_ms = 0;; waited_ms += poll_ms) {
        lock_state();
        pthread_mutex_lock(&sets_lock);
        struct event_set *set = set_of(handle);
        int found = set != NULL && target != NULL && next_event(set, target, with_instances);
        pthread_mutex_unlock(&sets_lock);
        pthread_rwlock_unlock(&lock);
        if (set == NULL || target == NULL)
            return INVALID_ARGUMENT;
        if (found)
            return SUCCESS;
        if (waited_ms >= timeout_ms)
            return TIMEOUT;
        uint64_t left_ms = timeout_ms - waited_ms;
        sleep_ns((left_ms < poll_ms ? left_ms : poll_ms) * 1000000u);
    }
}

static int call_event_function(uint32_t index, uint32_t subject, const uintptr_t *a)
{
    if (index == FN_EventSetWait || index == FN_EventSetWait_v2)
        return wait_for_event(a[0], (unsigned char *)a[1], (uint32_t)a[2], index == FN_EventSetWait_v2);
    int code = SUCCESS;
    pthread_mutex_lock(&sets_lock);
    struct event_set *set = set_of(index == FN_DeviceRegisterEvents ? a[2] : a[0]);
    if (index == FN_EventSetCreate)
        code = create_set((uintptr_t *)a[0]);
    else if (set == NULL)
        code = INVALID_ARGUMENT;
    else if (index == FN_EventSetFree)
        set->used = 0;
    else
        set->masks[subject % MAX_SUBJECTS] |= a[1];
    pthread_mutex_unlock(&sets_lock);
    return code;
}
