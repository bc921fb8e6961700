package main

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// notify tells the service manager how the daemon is (sd_notify(3)), one NAME=VALUE for each state. Without one it does
// nothing.
func notify(states ...string) error {
	path := os.Getenv("NOTIFY_SOCKET") // "@" first for an abstract one, as in package net
	if path == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(strings.Join(states, "\n"))); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// tell notifies, and logs when that fails.
func tell(log hclog.Logger, states ...string) {
	if err := notify(states...); err != nil {
		log.Warn("the service manager does not listen", "error", err)
	}
}
