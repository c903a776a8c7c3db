#ifndef STARTUP_H
#define STARTUP_H

#include <stdint.h>

void write_text(const char *text);

/* Bytes of stack that were ever written to. */
uint32_t stack_used(void);

#endif
