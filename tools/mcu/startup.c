/* What runs before main on a bare Cortex-M, and the two semihosting calls that the harness needs. */
#include "startup.h"

#define CPACR (*(volatile uint32_t *)0xE000ED88U)
#define SYS_WRITE0 0x04U
#define SYS_EXIT 0x18U
#define STOPPED_APPLICATION_EXIT 0x20026U
#define STOPPED_RUN_TIME_ERROR 0x20023U
#define PAINT 0xA5A5A5A5U

extern uint32_t data_start[];
extern uint32_t data_end[];
extern uint32_t data_load[];
extern uint32_t bss_start[];
extern uint32_t bss_end[];
extern uint32_t stack_start[];
extern uint32_t stack_end[];

int main(void);
void reset(void);
void fault(void);

static void semihost(uint32_t operation, uint32_t argument)
{
    register uint32_t r0 __asm__("r0") = operation;
    register uint32_t r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
}

void write_text(const char *text)
{
    semihost(SYS_WRITE0, (uint32_t)text);
}

uint32_t stack_used(void)
{
    const uint32_t *word = stack_start;
    while ((word < stack_end) && (*word == PAINT)) {
        word++;
    }
    return (uint32_t)(stack_end - word) * 4U;
}

void fault(void)
{
    write_text("fault\n");
    semihost(SYS_EXIT, STOPPED_RUN_TIME_ERROR);
    for (;;) {
    }
}

/* Nothing on the stack here yet: all of it can be painted, to see later how deep it went. */
__attribute__((noreturn, optimize("no-tree-loop-distribute-patterns"))) void reset(void)
{
    uint32_t *word;
    const uint32_t *from = data_load;
    uint32_t *here;
    __asm__ volatile("mov %0, sp" : "=r"(here));
    for (word = stack_start; word < (here - 16); word++) {
        *word = PAINT;
    }
    for (word = data_start; word < data_end; word++) {
        *word = *from;
        from++;
    }
    for (word = bss_start; word < bss_end; word++) {
        *word = 0U;
    }
#if defined(__ARM_FP)
    CPACR |= 0x00F00000U;
    __asm__ volatile("dsb\n isb" : : : "memory");
#endif
    semihost(SYS_EXIT, (main() == 0) ? STOPPED_APPLICATION_EXIT : STOPPED_RUN_TIME_ERROR);
    for (;;) {
    }
}

typedef void (*handler_t)(void);

__attribute__((section(".vectors"), used)) static const struct {
    uint32_t *stack;
    handler_t handlers[15];
} vectors = {stack_end, {reset, fault, fault, fault, fault, fault}};
