/* Finds the MPI module: beside the program or the library, or where ABAR_MPI_MODULE says. */
#define _GNU_SOURCE /* dladdr */
#include "comm/mpi.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef ABAR_MPI_BESIDE_PROGRAM
#define ABAR_MPI_BESIDE_PROGRAM "../lib/abar" /* CMake gives the folders of an installation */
#endif

typedef struct search {
    const abar__mpi_calls *found;
    char *why;
    size_t why_bytes;
} search;

static void explain(search *s, const char *text)
{
    if (text) snprintf(s->why, s->why_bytes, "%s", text);
}

static void try_file(search *s, const char *path)
{
    if (s->found) return;
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* global: parts of MPI libraries look for each other's symbols */
    if (!library) {
        explain(s, dlerror());
        return;
    }
    abar__mpi_entry *entry;
    void *symbol = dlsym(library, ABAR_MPI_ENTRY);
    memcpy(&entry, &symbol, sizeof entry);
    const abar__mpi_calls *calls = symbol ? entry() : NULL;
    if (calls && calls->version == ABAR_MPI_MODULE_VERSION) {
        s->found = calls;
        return;
    }
    explain(s, "it belongs to another version of abar");
    dlclose(library);
}

/* FOLDER/libabar_mpi_KIND.so, where such a file is. */
static void try_folder(search *s, const char *folder, const char *below, const char *kind)
{
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s%s%s/libabar_mpi_%s.so", folder, *below ? "/" : "", below, kind);
    if (n > 0 && (size_t)n < sizeof path && access(path, R_OK) == 0) try_file(s, path);
}

/* Cuts the file's name off; false: there is no folder. */
static bool to_folder(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash) *slash = 0;
    return slash != NULL;
}

static void try_kind(search *s, const char *kind)
{
    char folder[PATH_MAX] = "";
    const ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (n > 0 && to_folder(folder)) {
        try_folder(s, folder, "", kind);
        try_folder(s, folder, ABAR_MPI_BESIDE_PROGRAM, kind);
    }
    Dl_info info;
    static const char marker = 0; /* an address of the library that this code is in */
    if (dladdr(&marker, &info) && info.dli_fname && snprintf(folder, sizeof folder, "%s", info.dli_fname) > 0 &&
        to_folder(folder)) {
        try_folder(s, folder, "", kind);
        try_folder(s, folder, "abar", kind);
    }
}

const abar__mpi_calls *abar__mpi_load(const abar__launch *launch, char *why, size_t why_bytes)
{
    const char *path = getenv("ABAR_MPI_MODULE");
    search s = {NULL, why, why_bytes};
    const bool mpich = launch->by == ABAR_LAUNCH_PMI;
    explain(&s, mpich ? "there is no libabar_mpi_mpich.so" : "there is no libabar_mpi_openmpi.so");
    if (path && *path)
        try_file(&s, path);
    else
        try_kind(&s, mpich ? "mpich" : "openmpi");
    return s.found;
}
