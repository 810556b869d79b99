# Everything a developer or a packager runs. `make` alone lists the targets.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
# Where the programs are that are installed.
BUILT ?= target/release
# Takes out of a copy what debuggers read, which is most of a program. Empty: nothing is taken out.
STRIP ?= strip

# What the tests and the demo use besides the compiler. Tests that lack theirs say so and are counted.
DEBIAN_PACKAGES = fio libnbd-bin python3-libnbd python3-prometheus-client nbdkit qemu-utils fuse3 sqlite3 e2fsprogs postmark systemd xz-utils zstd bzip2 btrfs-progs xfsprogs lvm2

.PHONY: help programs build copy-dcd copy-lab test test-product lint fmt bench demo apps install install-dcd uninstall packages compare-md peers ublk vhost boot deb test-deb test-container msrv check-all soak clean

help:
	@echo 'make build     the programs, optimised: target/release/dcd, dcd-lab and dcd-crash'
	@echo 'make test      format, lints, all tests; installs what they use where it can'
	@echo 'make test-product  the same for crates/ alone, with short runs of the crash explorer'
	@echo 'make demo      a file system on a modelled disk, plain and behind dcd; a few minutes'
	@echo 'make apps      PostgreSQL, SQLite, etcd, git, dpkg and mail on a modelled disk, plain and behind dcd, killed once; half an hour or more'
	@echo 'make bench     the measurements of docs/benchmarks.md'
	@echo 'make compare-md  arrays beside Linux md, under a user-mode kernel; twenty minutes'
	@echo 'make peers     dcd beside the write caches of the kernel, in virtual time; hours, or less with SEEDS=1'
	@echo 'make ublk      kills, restarts and upgrades below ext4 on ublk and NBD, fsx, removals, under a kernel of its own; scripts/ublk.sh has the variables'
	@echo 'make vhost     a virtual machine over vhost-user, whose server is killed and stopped while it writes'
	@echo 'make boot      a machine with systemd whose file system is on a stack: started, switched off, and its power cut'
	@echo 'make test-container  the image of examples/docker, in a Docker and in a Podman of their own'
	@echo 'make msrv      checks the sources with the oldest Rust that Cargo.toml allows'
	@echo 'make check-all  msrv, boot, ublk, vhost, a short peers, test-deb and test-container, one after the other; an hour or more'
	@echo 'make soak      the tests of the driver under the address sanitizer; then crashes with new seeds for HOURS=8 hours, on all processors'
	@echo 'make lint fmt  check, or make, the format; warnings are errors'
	@echo 'make install   both programs, manual pages and completions, under $(PREFIX)'
	@echo 'make install-dcd   dcd alone'
	@echo 'make uninstall  removes what install put there; stack files, records and logs stay, as disks need them'
	@echo 'make deb       Debian packages of both, in target/debian; make test-deb tries them in a new Debian'

# One call for both, wherever they are built: cargo builds the libraries anew for another choice of programs.
programs:
	$(CARGO) build --release --locked -p dcd -p dcd-lab

build: programs
	$(CARGO) build --release --locked -p dcd-crash

# For tests alone: partitions, a browser that reports are shown in, and lints of scripts.
test test-product: DEBIAN_PACKAGES += fdisk chromium shellcheck

test: packages
	./scripts/test.sh

test-product: packages
	./scripts/test.sh product

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

fmt:
	$(CARGO) fmt --all

bench: packages build
	./scripts/bench.sh

apps: build
	./scripts/apps.sh target/release/dcd-lab

compare-md: build
	./scripts/compare-md.sh target/release/dcd-lab

peers: build
	./scripts/peers.sh target/release

ublk: programs
	./scripts/ublk.sh target/release/dcd

vhost: programs
	./scripts/vhost.sh target/release/dcd

boot: programs
	./scripts/boot.sh target/release/dcd

# What this builds has a directory of its own, as each compiler would build the other's anew.
msrv:
	@version=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); \
	if rustup toolchain list 2> /dev/null | grep -q "^$$version-"; then \
		$(CARGO) "+$$version" check --workspace --locked --target-dir target/msrv; \
	else \
		echo "SKIPPED: the sources are not checked with Rust $$version; missing: rustup toolchain install $$version"; \
	fi

# Before a release: what continuous integration does not run.
check-all:
	@./scripts/check-all.sh

# First the driver's tests, as only the driver has unsafe code. RUSTC_BOOTSTRAP=1 lets the stable compiler take -Zsanitizer. The driver
# leaks memory that the kernel may still write to.
soak:
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0 $(CARGO) test --locked -p dcd-io --lib --tests \
		--target $$(rustc -vV | sed -n 's/^host: //p') --target-dir target/address
	$(CARGO) build --release --locked -p dcd-crash
	./scripts/soak.sh target/release/dcd-crash $(or $(HOURS),8)

demo: packages programs
	./demo/demo.sh target/release/dcd-lab

# Root may lack the compiler: what "make build" has built is copied then.
install: $(if $(shell command -v $(CARGO) 2> /dev/null),programs) copy-dcd copy-lab

install-dcd:
	$(CARGO) build --release --locked -p dcd
	$(MAKE) copy-dcd

copy-dcd:
	$(call install_program,dcd)
	install -m 644 *.md LICENSE-* $(DESTDIR)$(PREFIX)/share/doc/dcd
	cp -r examples $(DESTDIR)$(PREFIX)/share/doc/dcd
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/dcd/docs docs/*.md docs/*.png
	install -d $(DESTDIR)/etc/dcd $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in dcd@.service dcd-attach@.service; do \
		sed 's|/usr/local/bin/|$(PREFIX)/bin/|' packaging/$$unit > $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit; \
	done
	install -D -m 644 packaging/dev-dcd-.device.conf $(DESTDIR)$(PREFIX)/lib/systemd/system/dev-dcd-.device.d/dcd.conf
	install -d $(DESTDIR)$(PREFIX)/lib/udev/rules.d
	sed 's|/usr/local/bin/|$(PREFIX)/bin/|' packaging/63-z-dcd.rules > $(DESTDIR)$(PREFIX)/lib/udev/rules.d/63-z-dcd.rules
	rm -f $(DESTDIR)$(PREFIX)/lib/udev/rules.d/61-dcd.rules
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/dcd packaging/prometheus/dcd.rules.yml packaging/prometheus/dcd.rules.test.yml packaging/grafana/dcd.json

copy-lab:
	$(call install_program,dcd-lab)

# Of each directory, only what install puts there.
uninstall:
	cd $(DESTDIR)$(PREFIX) && rm -rf share/dcd share/doc/dcd share/doc/dcd-lab lib/systemd/system/dev-dcd-.device.d && \
		rm -f bin/dcd bin/dcd-lab share/man/man?/dcd.? share/man/man?/dcd-*.? lib/systemd/system/dcd@.service \
		lib/systemd/system/dcd-attach@.service lib/udev/rules.d/63-z-dcd.rules share/bash-completion/completions/dcd \
		share/bash-completion/completions/dcd-lab share/zsh/site-functions/_dcd share/zsh/site-functions/_dcd-lab
	@echo 'What stays: stack files in /etc/dcd, records in /var/lib/dcd, and the units that "dcd create" enabled. "dcd remove" removes those.'

deb: programs
	./scripts/deb.sh target/release target/debian dcd dcd-lab

test-deb: deb
	./scripts/deb-chroot.sh target/debian/*.deb

test-container: programs
	./scripts/container.sh target/release/dcd

# A program with its manual pages, completions, and the notices of the libraries in it.
define install_program
	install -D $(if $(shell command -v $(STRIP)),-s --strip-program=$(STRIP)) -m 755 $(BUILT)/$(1) $(DESTDIR)$(PREFIX)/bin/$(1)
	install -d $(DESTDIR)$(PREFIX)/share/doc/$(1)
	if command -v cargo > /dev/null; then ./scripts/notices.sh $(1) > $(DESTDIR)$(PREFIX)/share/doc/$(1)/NOTICES; fi
	$(BUILT)/$(1) man target/man/$(1)
	for section in 1 5 7; do \
		install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man$$section target/man/$(1)/*.$$section || exit; \
	done
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	$(BUILT)/$(1) completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$(1)
	$(BUILT)/$(1) completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_$(1)
endef

# Installs what is missing, where that is possible: as root, on Debian and its kin. Never fails.
packages:
	@./scripts/packages.sh $(DEBIAN_PACKAGES)

clean:
	$(CARGO) clean
