/* command.c - commands, and the execution of one on the present thread. */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "libtecore/backend/host/host.h"

/* a wait for a word yields so often, then sleeps longer and longer, up to this */
#define WORD_SPINS 64
#define WORD_NAP_NS 100000

_Thread_local struct host_running host_running;

int host_fault(const char *what)
{
	if (!te__fault_point())
		return 0;
	te__fail(-ENOMEM, "host: %s: injected fault", what);
	return 1;
}

void te__k_fail(int code)
{
	if (host_running.dev && !host_running.error)
		host_running.error = code;
}

int host_cmd_set(struct host_cmd *cmd, const struct host_op *op, const void *args, size_t nbytes)
{
	cmd->op = *op;
	cmd->big = NULL;
	cmd->declared = NULL;
	if (nbytes > sizeof(cmd->args)) {
		cmd->big = te__malloc(nbytes);
		if (!cmd->big)
			return te__fail(-ENOMEM, "host: no memory for %zu bytes of arguments",
					nbytes);
		memcpy(cmd->big, args, nbytes);
	} else if (nbytes) {
		memcpy(cmd->args, args, nbytes);
	}
	return 0;
}

static void fill32(uint32_t *dst, uint32_t value, size_t nwords)
{
	for (size_t i = 0; i < nwords; i++)
		dst[i] = value;
}

/* the thread that sets the word must end the wait */
static void take_word(_Atomic uint32_t *word)
{
	struct timespec t = { .tv_nsec = 1000 };

	for (int i = 0; !atomic_load_explicit(word, memory_order_acquire); i++) {
		if (i < WORD_SPINS) {
			sched_yield();
			continue;
		}
		nanosleep(&t, NULL);
		t.tv_nsec = t.tv_nsec < WORD_NAP_NS ? 2 * t.tv_nsec : t.tv_nsec;
	}
	atomic_store_explicit(word, 0, memory_order_relaxed);
}

void host_run(const struct host_cmd *cmd)
{
	const struct host_op *op = &cmd->op;
	const void *args = cmd->big ? cmd->big : cmd->args;

	switch (op->kind) {
	case HOST_COPY:
		memmove(op->dst, op->src, op->nbytes);
		break;
	case HOST_FILL8:
		memset(op->dst, (int)op->value, op->nbytes);
		break;
	case HOST_FILL32:
		fill32(op->dst, op->value, op->nbytes / 4);
		break;
	case HOST_CALL:
		op->fn(op->nbytes ? (void *)(uintptr_t)args : op->dst);
		break;
	case HOST_WORD_SET:
		atomic_store_explicit((_Atomic uint32_t *)op->dst, op->value, memory_order_release);
		break;
	case HOST_WORD_TAKE:
		take_word(op->dst);
		break;
	case HOST_KERNEL:
		te__k_reference((enum te_k_id)op->value)(args);
		break;
	default:
		break;
	}
}
