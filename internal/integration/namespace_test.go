package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

const (
	// redirectMark is set on a client's sockets whose connections are to be redirected to Envoy. What Envoy and meshd
	// dial carries no mark and goes straight.
	redirectMark = 0x77

	// upstreamNet holds the upstreams: every address of it is local, and so is every service address.
	upstreamNet = "10.77.0.1/24"
	serviceNet  = "198.51.100.0/24"

	// anyServiceIP is a service address that nobody listens on: what an application dials when a service has no address
	// and its host name tells it apart.
	anyServiceIP = "198.51.100.1"
)

// redirection is what `istio-iptables` sets up, for marked packets only.
const redirection = `
table ip meshd {
	chain output {
		type nat hook output priority -100
		meta mark 0x77 ip protocol tcp redirect to :15001
	}
}
`

// reexec runs this program again, with the same arguments, in new user, network, mount and process namespaces, and gives
// its exit code. The caller's user is root there. All that runs in them ends with the program.
func reexec(env []string) (int, error) {
	// The child is killed when the thread that started it ends, so it must not end.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	exe, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(exe, os.Args[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 1, fmt.Errorf("entering namespaces of our own: %w%s", err, userNamespaceHint)
	}
	return 0, nil
}

const userNamespaceHint = "\nAre user namespaces allowed here? See the sysctls user.max_user_namespaces, " +
	"kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns; a container needs " +
	"--security-opt seccomp=unconfined"

// setUpNamespace gives the new network namespace its addresses, its redirection and its name server; dir holds what that takes.
func setUpNamespace(dir string) error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"addr", "add", upstreamNet, "dev", "lo"},
		{"route", "add", "local", serviceNet, "dev", "lo"},
	} {
		if err := run("iproute2", "", "ip", args...); err != nil {
			return fmt.Errorf("%w%s", err, userNamespaceHint)
		}
	}
	if err := run("nftables", redirection, "nft", "-f", "-"); err != nil {
		return err
	}
	return useNameServer(dir)
}

func run(pkg, stdin, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		// An ordinary user's PATH may lack the administrator's folders.
		if path, err = exec.LookPath("/usr/sbin/" + name); err != nil {
			return fmt.Errorf("no %s here: install the package %s", name, pkg)
		}
	}
	cmd := exec.Command(path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// useNameServer lays files of our own, in dir, over the resolver's, for the processes in this mount namespace only.
func useNameServer(dir string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keeping mounts to ourselves: %w", err)
	}
	for path, text := range map[string]string{
		"/etc/resolv.conf": "nameserver " + nameServerIP + "\noptions timeout:1\n",
		"/etc/hosts":       "127.0.0.1 localhost\n",
	} {
		file := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(file, path, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("laying a file over %s: %w", path, err)
		}
	}
	return nil
}
