/* Status codes, contexts, and option tables.
 *
 * A function that can fail returns an abar_status. Negative codes are failures, explained by abar_context_error; positive codes
 * are successes of a special kind. The library never prints, exits or aborts. */
#ifndef ABAR_BASE_H
#define ABAR_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ABAR_VERSION_MAJOR 0
#define ABAR_VERSION_MINOR 1
#define ABAR_VERSION_PATCH 0

/* "0.1.0" */
const char *abar_version(void);

/* The numbers are part of the ABI and keep their meaning. */
typedef enum abar_status {
    ABAR_OK = 0,
    ABAR_STOPPED = 1,        /* ended early, as the caller asked */
    ABAR_E_ARGUMENT = -1,    /* an argument or setting is invalid */
    ABAR_E_MEMORY = -2,      /* an allocation failed */
    ABAR_E_IO = -3,          /* the system refused to read or write */
    ABAR_E_FORMAT = -4,      /* a file is damaged or of another kind */
    ABAR_E_NOT_FOUND = -5,   /* no such file, model, data set, device, option */
    ABAR_E_UNSUPPORTED = -6, /* valid, but not available in this build or on this device */
    ABAR_E_NUMERIC = -7,     /* training produced values that are not finite */
    ABAR_E_STATE = -8,       /* called in the wrong order */
    ABAR_E_BUSY = -9,        /* in use by another process or object */
    ABAR_E_BACKEND = -10,    /* a library that abar uses failed */
    ABAR_E_PEER = -11,       /* another rank died, hangs, or cannot be reached */
} abar_status;

/* A short constant text for a code, for use without a context. */
const char *abar_status_text(abar_status status);

/* A struct that the caller fills or gives for filling begins with its size: set it to sizeof the struct, or use ABAR_CONFIG,
 *
 *     abar_linear(net, x, "fc", &ABAR_CONFIG(abar_linear_config, .out = 10, .bias = true));
 *
 * so that a program keeps working with a later library whose struct has more members: those it lacks are 0, which always
 * means the default. A size of 0 and one larger than the library's are refused. docs/abi.md has all the rules. */
#define ABAR_CONFIG(type, ...) ((type){.size = sizeof(type), __VA_ARGS__})

/* Every other object is created from a context, which provides memory, logging and the text of the last failure. */
typedef struct abar_context abar_context;

/* An allocator of the caller. alloc returns memory aligned to align (a power of two) or NULL. */
typedef struct abar_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*release)(void *user, void *memory, size_t bytes);
    void *user;
} abar_allocator;

typedef enum abar_log_level { ABAR_LOG_DEBUG, ABAR_LOG_INFO, ABAR_LOG_WARNING } abar_log_level;

typedef struct abar_context_config {
    size_t size;                                                     /* sizeof(abar_context_config) */
    abar_allocator allocator;                                        /* alloc NULL: the C library's */
    void (*log)(void *user, abar_log_level level, const char *text); /* NULL: silent */
    void *log_user;
} abar_context_config;

/* config may be NULL. A context, with all that was created from it, is used by one thread at a time. Its allocator may be
 * called from several. */
abar_status abar_context_create(const abar_context_config *config, abar_context **out);
void abar_context_destroy(abar_context *ctx);

/* The last failure in one line: what failed, why, and what to do about it. "" before the first. */
const char *abar_context_error(const abar_context *ctx);

typedef struct abar_memory_stats {
    size_t now, peak;     /* bytes allocated through the context */
    uint64_t allocations; /* calls of alloc so far */
} abar_memory_stats;

abar_memory_stats abar_context_memory(const abar_context *ctx);
void abar_context_reset_peak(abar_context *ctx);

/* Option tables: one row per setting of a config, used by the command line, --help, config.json and checkpoints. */
typedef enum abar_option_type {
    ABAR_OPTION_INT,    /* int64_t */
    ABAR_OPTION_REAL,   /* double */
    ABAR_OPTION_BOOL,   /* bool; on the command line --NAME sets it and --no-NAME clears it */
    ABAR_OPTION_CHOICE, /* int64_t: index into choices */
    ABAR_OPTION_TEXT,   /* char[ABAR_OPTION_TEXT_MAX] */
} abar_option_type;

#define ABAR_OPTION_TEXT_MAX 512

typedef struct abar_option {
    const char *name; /* "weight-decay"; NULL ends a table */
    abar_option_type type;
    size_t offset;        /* of the field in the config struct */
    const char *fallback; /* the default, as a user would type it */
    double min, max;      /* inclusive range of numbers */
    const char *choices;  /* "cosine|step|constant" */
    const char *help;     /* one line, lower case, no full stop */
} abar_option;

/* Sets every field of config to its default. */
void abar_options_default(const abar_option *table, void *config);
/* Parses text into the named field. */
abar_status abar_options_set(abar_context *ctx, const abar_option *table, void *config, const char *name, const char *text);
/* Writes the field as abar_options_set would read it. */
abar_status abar_options_get(abar_context *ctx, const abar_option *table, const void *config, const char *name, char *text,
                             size_t size);
const abar_option *abar_options_find(const abar_option *table, const char *name);

/* The entry of names (NULL-terminated) closest to name, or NULL if none is close; for "did you mean". */
const char *abar_nearest_name(const char *name, const char *const *names);

#ifdef __cplusplus
}
#endif
#endif
