# SPDX-License-Identifier: MIT
"""Fresh root file systems of Debian, created by debootstrap, and commands in them."""
import os
import re
import pathlib
import shutil
import subprocess
import sys

# Mounts go with the process, whatever becomes of it.
INSIDE = 'mount --bind /proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" sh -ec "$1"'


def run(*command, **more):
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, **more)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def expect(is_good, what):
    if not is_good:
        sys.exit(f"not ok - {what}")


class Fresh:
    def __init__(self, folder):
        self.folder = folder

    def make(self, suite, *packages):
        """Let debootstrap fill it, from where this machine has its packages; of its own release with its settings of apt."""
        places = run("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages").split("\n")
        own, uri = next(line.split() for line in places if re.match(r"[a-z]+ .*/debian/?$", line))
        run("unshare", "--mount", "debootstrap", "--variant=minbase", f"--include={','.join(('ca-certificates', *packages))}", suite,
            self.folder, uri)
        if suite != own:
            return
        (self.folder / "etc/apt/sources.list").unlink(missing_ok=True)
        for name in ("etc/apt", "etc/ssl/certs"):
            run("cp", "-a", f"/{name}/.", self.folder / name)
        for name in ("etc/resolv.conf", "etc/hosts"):
            shutil.copy(pathlib.Path("/", name), self.folder / name)

    def do(self, command):
        return run("unshare", "--mount", "sh", "-c", INSIDE, self.folder, command,
                   env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"})

    def bring(self, folder):
        shutil.copytree(folder, self.folder / "packages", dirs_exist_ok=True)


def missing(programs):
    absent = [name for name in programs if not shutil.which(name)]
    return "root is needed" if os.geteuid() else f"not installed: {', '.join(absent)}" if absent else ""
