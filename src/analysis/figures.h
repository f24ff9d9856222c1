/* Each analysis as a table (CSV and JSON) and a picture (SVG). */
#ifndef ABAR_ANALYSIS_FIGURES_H
#define ABAR_ANALYSIS_FIGURES_H

#include "analysis/results.h"
#include "analysis/theory.h"
#include "io/plot.h"

/* What the figures are made of. */
typedef struct abar__figures {
    abar_context *ctx;
    const abar_setup *setup;
    const abar__collection *collection;
    const abar__snapshot *snapshots;
    int n_snapshots;
    const char *dir;
    double damping;
} abar__figures;

abar_status abar__figure_spectra(const abar__figures *f);
abar_status abar__figure_alignment(const abar__figures *f);
abar_status abar__figure_covariance(const abar__figures *f);
abar_status abar__figure_convergence(const abar__figures *f);
abar_status abar__figure_attention(const abar__figures *f);
abar_status abar__figure_heatmap(const abar__figures *f);
abar_status abar__figure_theory(const abar__theory *t, const char *dir);

/* What the numbers mean for this network, in a few sentences (Markdown). */
abar_status abar__describe_network(const abar__figures *f, abar__text *out);
/* The theorem's table of statements. */
abar_status abar__describe_theory(const abar__theory *t, abar__text *out);

/* Shared by the figures' files. */
enum { ABAR_FIGURE_LAYERS = 6, ABAR_FIGURE_SNAPSHOTS = 3 };
/* Of epochs and of numbers of layers: ticks at whole numbers from low to high only. */
abar__axis abar__whole_axis(double low, double high);
/* "lenet5 on mnist, epoch 3, 512 training samples"; snapshot NULL: without. Returns text. */
const char *abar__figure_subtitle(const abar__figures *f, const char *snapshot, char text[256]);
/* At most so many of n, evenly spaced, the first and the last among them; returns how many. */
int abar__pick(int n, int most, int *chosen);

#endif
