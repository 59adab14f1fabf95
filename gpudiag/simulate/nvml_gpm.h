/*
 * GPM of the simulated library: a sample remembers whom it is of; the metrics of two samples of one
 * subject are the answers of nvmlGpmMetricsGet for it, one for each metric's number.
 * Included by nvml_library.c alone.
 */

struct gpm_sample {
    uint64_t magic; /* a pointer that is no sample of ours is refused */
    uint32_t subject, taken;
};
struct gpm_metric { /* nvmlGpmMetric_t */
    uint32_t number, code;
    double value;
    const char *names[3];
};
struct gpm_request { /* nvmlGpmMetricsGet_t, of which every version has another number of metrics */
    uint32_t version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metrics[];
};
static const uint64_t GPM_MAGIC = 0x6770756469616701u;

static int is_gpm_function(uint32_t index)
{
    return index == FN_GpmSampleAlloc || index == FN_GpmSampleFree || index == FN_GpmSampleGet ||
           index == FN_GpmMigSampleGet || index == FN_GpmMetricsGet;
}

static int allocate_sample(struct gpm_sample **target)
{
    struct gpm_sample *sample = target == NULL ? NULL : calloc(1, sizeof *sample);
    if (sample == NULL)
        return INVALID_ARGUMENT;
    sample->magic = GPM_MAGIC;
    *target = sample;
    return SUCCESS;
}

static int free_sample(struct gpm_sample *sample)
{
    if (sample == NULL || sample->magic != GPM_MAGIC)
        return INVALID_ARGUMENT;
    sample->magic = 0;
    free(sample);
    return SUCCESS;
}

/* Take a sample, if the GPU or its instance answers; the answer of an instance is its subject. */
static int take_sample(uint32_t index, uint32_t subject, const uintptr_t *arguments)
{
    int of_instance = index == FN_GpmMigSampleGet;
    struct gpm_sample *sample = (struct gpm_sample *)arguments[of_instance ? 2 : 1];
    uint64_t key;
    if (sample == NULL || sample->magic != GPM_MAGIC ||
        !make_key(AT(struct function, functions) + index, arguments, &key))
        return INVALID_ARGUMENT;
    const struct slot *slot = find_answer(index, subject, key);
    if (slot == NULL)
        return (AT(struct function, functions) + index)->default_code;
    if (slot->flags & HANGS)
        return -1;
    if (slot->code != SUCCESS)
        return slot->code;
    sample->subject = subject;
    if (of_instance && slot->length == sizeof sample->subject)
        memcpy(&sample->subject, state + HEADER->bytes + slot->offset, slot->length);
    sample->taken = 1;
    return SUCCESS;
}

static int compute_metrics(struct gpm_request *request)
{
    const struct gpm_sample *first = request == NULL ? NULL : request->first;
    const struct gpm_sample *second = request == NULL ? NULL : request->second;
    if (first == NULL || second == NULL || request->version != 1 || first->magic != GPM_MAGIC ||
        second->magic != GPM_MAGIC || !first->taken || !second->taken || first->subject != second->subject ||
        first == second)
        return INVALID_ARGUMENT;
    for (uint32_t i = 0; i < request->count; i++) {
        struct gpm_metric *metric = &request->metrics[i];
        const struct slot *slot =
            find_slot(FN_GpmMetricsGet, first->subject, mix(HASH_SEED, metric->number));
        metric->code = slot == NULL ? NOT_SUPPORTED : (uint32_t)slot->code;
        if (slot != NULL && slot->code == SUCCESS && slot->length == sizeof metric->value)
            memcpy(&metric->value, state + HEADER->bytes + slot->offset, slot->length);
    }
    return SUCCESS;
}

static int call_gpm_function(uint32_t index, uint32_t subject, const uintptr_t *arguments)
{
    if (index == FN_GpmSampleAlloc)
        return allocate_sample((struct gpm_sample **)arguments[0]);
    if (index == FN_GpmSampleFree)
        return free_sample((struct gpm_sample *)arguments[0]);
    lock_state();
    int code = UNKNOWN;
    if (state != NULL && index == FN_GpmMetricsGet)
        code = compute_metrics((struct gpm_request *)arguments[0]);
    else if (state != NULL)
        code = take_sample(index, subject, arguments);
    pthread_rwlock_unlock(&lock);
    return code;
}
