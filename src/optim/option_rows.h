/* Rows of a rule's option table; config is the rule's own struct. standard: the default, as a user would type it. */
#ifndef ABAR_OPTION_ROWS_H
#define ABAR_OPTION_ROWS_H

#define REAL(option, field, standard, least, most, text)                                                                 \
    {                                                                                                                    \
        .name = option, .type = ABAR_OPTION_REAL, .offset = offsetof(config, field), .fallback = standard, .min = least, \
        .max = most, .help = text                                                                                        \
    }
#define WHOLE(option, field, standard, least, most, text)                                                               \
    {                                                                                                                   \
        .name = option, .type = ABAR_OPTION_INT, .offset = offsetof(config, field), .fallback = standard, .min = least, \
        .max = most, .help = text                                                                                       \
    }
#define CHOICE(option, field, standard, words, text)                                                                           \
    {                                                                                                                          \
        .name = option, .type = ABAR_OPTION_CHOICE, .offset = offsetof(config, field), .fallback = standard, .choices = words, \
        .help = text                                                                                                           \
    }
#define FLAG(option, field, standard, text)                                                                             \
    {                                                                                                                   \
        .name = option, .type = ABAR_OPTION_BOOL, .offset = offsetof(config, field), .fallback = standard, .help = text \
    }
#define TEXT(option, field, standard, text)                                                                             \
    {                                                                                                                   \
        .name = option, .type = ABAR_OPTION_TEXT, .offset = offsetof(config, field), .fallback = standard, .help = text \
    }

#endif
