/* tt_gate.c - see tt_gate.h. */
#include "config.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "tt.h"
#include "tt_gate.h"

#define MAX_MS 20000

static atomic_int is_open = 1, timed_out;
static pthread_t opener;
static int has_opener;

void tt_sleep_ms(int ms)
{
	nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000L }, NULL);
}

static void join(void)
{
	if (has_opener)
		pthread_join(opener, NULL);
	has_opener = 0;
}

void tt_gate_setup(void)
{
	join();
	atomic_store(&is_open, 1);
	atomic_store(&timed_out, 0);
}

void tt_gate_teardown(void)
{
	join();
	atomic_store(&is_open, 1);
	ck_assert_msg(!atomic_load(&timed_out), "a gate was not opened in time");
}

void tt_gate_wait(void *arg)
{
	for (int ms = 0; ms < MAX_MS; ms++) {
		if (atomic_load(&is_open))
			return;
		tt_sleep_ms(1);
	}
	atomic_store(&timed_out, 1);
}

void tt_gate_close(void)
{
	join();
	atomic_store(&is_open, 0);
}

void tt_gate_open(void)
{
	atomic_store(&is_open, 1);
}

static void *open_later(void *ms)
{
	tt_sleep_ms(*(int *)ms);
	atomic_store(&is_open, 1);
	return NULL;
}

void tt_gate_open_later(int ms)
{
	static int later;

	join();
	later = ms;
	ck_assert_int_eq(pthread_create(&opener, NULL, open_later, &later), 0);
	has_opener = 1;
}

int tt_gate_is_open(void)
{
	return atomic_load(&is_open);
}

int tt_gate_timed_out(void)
{
	return atomic_load(&timed_out);
}
