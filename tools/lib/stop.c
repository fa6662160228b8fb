/* stop.c - signals that end a run after the step in progress. */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "say.h"
#include "stop.h"

/*
 * timeout(1) signals the process and then its group, and a closed terminal is reported by the
 * kernel and by the shell: a signal so soon after the first one is not a second request.
 */
#define SAME_NS 500000000

static const struct {
	int sig;
	const char *name;
} signals[] = {
	{ SIGINT, "SIGINT" },	{ SIGTERM, "SIGTERM" }, { SIGHUP, "SIGHUP" },
	{ SIGUSR1, "SIGUSR1" }, { SIGUSR2, "SIGUSR2" }, { SIGXCPU, "SIGXCPU" },
};
#define NSIGNALS (sizeof(signals) / sizeof(signals[0]))

static atomic_int phase, saves;
static atomic_llong next_step, stop_step;
static atomic_llong first_ns;
static atomic_int first_sig;
static atomic_int taken; /* after stop_step was stored */

/* for signal handlers: appends as much as fits */
static void add(char *dst, size_t room, const char *s)
{
	size_t n = strlen(dst);

	while (*s && n + 1 < room)
		dst[n++] = *s++;
	dst[n] = '\0';
}

static void add_number(char *dst, size_t room, int64_t x)
{
	char digits[24] = "";
	size_t at = sizeof(digits) - 1;

	do {
		digits[--at] = (char)('0' + x % 10);
		x /= 10;
	} while (x);
	add(dst, room, digits + at);
}

static void announce(int sig, int64_t step)
{
	char text[160] = "";
	const size_t room = sizeof(text);

	for (size_t i = 0; i < NSIGNALS; i++) {
		if (signals[i].sig == sig)
			add(text, room, signals[i].name);
	}
	switch ((enum stop_phase)atomic_load(&phase)) {
	case STOP_STEP:
		add(text, room, ": finishing step ");
		break;
	case STOP_VALIDATION:
		add(text, room, ": ending the validation of step ");
		break;
	case STOP_SAVE:
		add(text, room, ": finishing the save of step ");
		break;
	case STOP_SAMPLE:
		add(text, room, ": ending the sample of step ");
		break;
	case STOP_RANKS:
		add(text, room, ": all ranks end after step ");
		break;
	}
	add_number(text, room, step);
	if (atomic_load(&phase) == STOP_RANKS)
		add(text, room, " or before");
	if (atomic_load(&phase) != STOP_SAVE && atomic_load(&phase) != STOP_SAMPLE)
		add(text, room, atomic_load(&saves) ? ", then saving" : "; nothing is saved");
	if (sig == SIGINT || sig == SIGTERM)
		add(text, room, "; a second one ends immediately");
	say_from_handler(text);
}

/* SIGTERM may follow a warning by another signal, when the time of a job is over */
static int ends_at_once(int sig)
{
	const int first = atomic_load(&first_sig);

	return (sig == SIGINT || (sig == SIGTERM && (first == SIGINT || first == SIGTERM))) &&
	       now_ns() - atomic_load(&first_ns) > SAME_NS;
}

static void on_signal(int sig)
{
	int err = errno;

	if (atomic_load(&taken)) {
		if (ends_at_once(sig))
			_exit(128 + sig);
	} else {
		atomic_store(&first_ns, now_ns());
		atomic_store(&first_sig, sig);
		atomic_store(&stop_step, atomic_load(&next_step));
		atomic_store(&taken, 1);
		announce(sig, atomic_load(&stop_step));
	}
	errno = err;
}

void stop_action(int sig, const struct sigaction *sa)
{
	struct sigaction old;

	if (!sigaction(sig, NULL, &old) && old.sa_handler != SIG_IGN)
		sigaction(sig, sa, NULL);
}

void stop_on_signals(void)
{
	struct sigaction sa = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

	for (size_t i = 0; i < NSIGNALS; i++)
		sigaddset(&sa.sa_mask, signals[i].sig);
	for (size_t i = 0; i < NSIGNALS; i++)
		stop_action(signals[i].sig, &sa);
}

void stop_phase(enum stop_phase p, int64_t step, int will_save)
{
	atomic_store(&saves, will_save);
	atomic_store(&phase, (int)p);
	atomic_store(&next_step, step);
}

void stop_again(int64_t step)
{
	if (atomic_load(&taken))
		atomic_store(&stop_step, step);
}

int64_t stop_requested(void)
{
	return atomic_load(&taken) ? atomic_load(&stop_step) : INT64_MAX;
}

int stop_at(int64_t step)
{
	return atomic_load(&taken) && step >= atomic_load(&stop_step);
}
