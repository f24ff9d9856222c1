/* Replaces product_onednn.c in a build without oneDNN. */
#include "device/cpu/product.h"

#include <cblas.h>

const char abar__multiply_name[] = "openblas-linear";

abar_status abar__multiply(const abar__product *p)
{
    cblas_sgemm(CblasRowMajor, p->trans_a ? CblasTrans : CblasNoTrans, p->trans_b ? CblasTrans : CblasNoTrans, (blasint)p->m,
                (blasint)p->n, (blasint)p->k, 1.0f, p->a, (blasint)p->lda, p->b, (blasint)p->ldb, p->beta, p->c,
                (blasint)p->ldc);
    return ABAR_OK;
}

abar_status abar__multiply_ready(void) { return ABAR_OK; }
