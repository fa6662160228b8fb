# check-vm boots guests under QEMU and runs the tools there; not a part of check. See doc/vm.md.
EXTRA_DIST += \
	doc/vm.md \
	vm/check.sh \
	vm/guest.sh \
	vm/image.sh \
	vm/init \
	vm/kernel.sh \
	vm/payload/comm.sh \
	vm/payload/disk.sh \
	vm/payload/hang.sh \
	vm/payload/hello.sh \
	vm/payload/meet.sh \
	vm/payload/pair.sh \
	vm/payload/service.sh \
	vm/payload/train.sh \
	vm/payload/wire.sh

check_PROGRAMS += vm/root
vm_root_SOURCES = vm/root.c
vm_root_LDADD = libtecomm/libtecomm.la libtecore/libtecore.la

VM_RUNS = t/comm/link_pair vm/root
if HAVE_CHECK
VM_RUNS += t/comm/recover_rank
endif

check-vm: all $(VM_RUNS) $(UNITS)
	VM_BUILD='$(abs_top_builddir)' VM_DIR='$(abs_top_builddir)/vm/run' \
		bash '$(abs_srcdir)/vm/check.sh'

clean-local: clean-vm
clean-vm:
	rm -rf vm/run vm/run.cache

.PHONY: check-vm clean-vm
