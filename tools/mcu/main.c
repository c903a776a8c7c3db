/* Runs a network on every image and writes a line for each: class, instructions, and the scores as hexadecimal words.
 *
 * Instructions are read from the board's TIMER0. It counts at 25 MHz of virtual time, and QEMU with -icount shift=6 lets
 * every instruction take 64 ns of it: 8 ticks are 5 instructions. */
#include "images.h"
#include "startup.h"

#include NETWORK_HEADER

#define TIMER_CTRL (*(volatile uint32_t *)0x40000000U)
#define TIMER_VALUE (*(volatile uint32_t *)0x40000004U)
#define TIMER_RELOAD (*(volatile uint32_t *)0x40000008U)

static char line[16];

static void write_word(const char *before, uint32_t word)
{
    static const char digits[] = "0123456789abcdef";
    uint32_t i;
    write_text(before);
    for (i = 0U; i < 8U; i++) {
        line[i] = digits[(word >> (28U - (4U * i))) & 15U];
    }
    line[8] = '\0';
    write_text(line);
}

int main(void)
{
    static union {
        SCORE_TYPE score[CLASSES];
        uint32_t word[CLASSES];
    } found;
    uint32_t index;
    uint32_t k;
    TIMER_RELOAD = 0xFFFFFFFFU;
    TIMER_VALUE = 0xFFFFFFFFU;
    TIMER_CTRL = 1U;
    for (index = 0U; index < IMAGES; index++) {
        uint32_t begun;
        uint32_t ticks;
        int16_t best;
        begun = TIMER_VALUE;
        best = CLASSIFY(images[index]);
        ticks = begun - TIMER_VALUE;
        SCORES(images[index], found.score);
        write_word("class ", (uint32_t)best);
        write_word(" ticks ", ticks);
        for (k = 0U; k < CLASSES; k++) {
            write_word(" ", found.word[k]);
        }
        write_text("\n");
    }
    write_word("stack ", stack_used());
    write_text("\n");
    return 0;
}
