/* Reads the events of a trace from the file named by the environment's TRACE, for `protocol.pml`. A line has seven
   numbers: the event, the actor, the earliest and latest tick, the owner of the row that a look saw, whether a clock of a
   server may have been wrong, and whether that owner sends heartbeats. `traces.py` writes them. */
#include <stdio.h>
#include <stdlib.h>

#define MOST_EVENTS 2000

static struct { int event, actor, earliest, latest, owner, is_clock_wrong, beats; } script[MOST_EVENTS + 1];
static int length, furthest;

static void report(void) { printf("followed %d of %d events\n", furthest, length); }

static void read_trace(void) {
    FILE *file = fopen(getenv("TRACE"), "r");
    if (!file) { fprintf(stderr, "there is no trace\n"); exit(2); }
    for (length = 0; length < MOST_EVENTS && fscanf(file, "%d %d %d %d %d %d %d", &script[length].event, &script[length].actor, &script[length].earliest,
            &script[length].latest, &script[length].owner, &script[length].is_clock_wrong, &script[length].beats) == 7; length++) { }
    fclose(file);
    atexit(report);
}
