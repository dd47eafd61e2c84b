# SPDX-License-Identifier: MIT
"""Fresh root file systems of Debian, created by debootstrap, and commands in them."""
import os
import re
import pathlib
import shutil
import subprocess
import sys

# The kernel removes the mounts when the process that unshared the mount namespace ends.
CHROOT = 'mount --bind /proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" sh -ec "$1"'


def run(*command, **options):
    result = subprocess.run([str(argument) for argument in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False, **options)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}: status {result.returncode}\n{result.stdout}")
    return result.stdout


def expect(condition, message):
    if not condition:
        sys.exit(f"not ok - {message}")


class FreshRoot:
    def __init__(self, folder):
        self.folder = folder

    def create(self, suite, *packages):
        """Run debootstrap with the host's package source.  A root of the host's release also has the host's settings of apt."""
        sources = run("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages").split("\n")
        host_suite, uri = next(line.split() for line in sources if re.match(r"[a-z]+ .*/debian/?$", line))
        run("unshare", "--mount", "debootstrap", "--variant=minbase", f"--include={','.join(('ca-certificates', *packages))}",
            suite, self.folder, uri)
        if suite != host_suite:
            return
        (self.folder / "etc/apt/sources.list").unlink(missing_ok=True)
        for name in ("etc/apt", "etc/ssl/certs"):
            run("cp", "-a", f"/{name}/.", self.folder / name)
        for name in ("etc/resolv.conf", "etc/hosts"):
            shutil.copy(pathlib.Path("/", name), self.folder / name)

    def run(self, command):
        return run("unshare", "--mount", "sh", "-c", CHROOT, self.folder, command,
                   env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"})

    def copy_packages(self, folder):
        shutil.copytree(folder, self.folder / "packages", dirs_exist_ok=True)


def missing_requirement(programs):
    missing = [name for name in programs if not shutil.which(name)]
    return "requires root" if os.geteuid() else f"not installed: {', '.join(missing)}" if missing else ""
