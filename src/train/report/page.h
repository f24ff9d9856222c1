/* page.html with its style and scripts, as a text. The build makes its source (page.cmake). */
#ifndef ABAR_REPORT_PAGE_H
#define ABAR_REPORT_PAGE_H

extern const unsigned char abar__report_html[];

#endif
