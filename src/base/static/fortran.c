/* The one function of gfortran's runtime that a static OpenBLAS needs (dgesvd): with it a wheel carries no libgfortran. */
#include <stddef.h>
#include <string.h>

void _gfortran_concat_string(size_t size, char *out, size_t n, const char *first, size_t m, const char *second);

/* out = first // second, cut or padded with blanks to size, as Fortran does. */
void _gfortran_concat_string(size_t size, char *out, size_t n, const char *first, size_t m, const char *second)
{
    const size_t head = n < size ? n : size;
    const size_t tail = m < size - head ? m : size - head;
    memcpy(out, first, head);
    memcpy(out + head, second, tail);
    memset(out + head + tail, ' ', size - head - tail);
}
