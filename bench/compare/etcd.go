package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/lockgate/lockgate/bench"
)

const (
	// startLimit bounds the start of etcd, which usually takes a second.
	startLimit = time.Minute

	// stopLimit bounds its orderly end, after which it is killed.
	stopLimit = 30 * time.Second
)

// startEtcd starts a single server of etcd, with the durability that it has by
// itself, and returns when it answers. stop ends it.
func (c *comparer) startEtcd(ctx context.Context) (endpoint string, stop func() error, err error) {
	client, err := freeAddress(ctx)
	if err != nil {
		return "", nil, err
	}
	peer, err := freeAddress(ctx)
	if err != nil {
		return "", nil, err
	}
	said := new(bytes.Buffer)
	cmd := exec.Command(c.etcd, "--name=bench", "--data-dir="+filepath.Join(c.dir, "etcd"), "--log-level=error",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=bench="+peer)
	cmd.Env = bench.Environ()
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start etcd: %w", err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = cmd.Wait() // it is ended by a signal
	}()
	stop = func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		select {
		case <-gone:
			return nil
		case <-time.After(stopLimit):
			return errors.Join(fmt.Errorf("stop etcd: not gone within %s", stopLimit), cmd.Process.Kill())
		}
	}

	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("no answer within %s", startLimit))
	defer cancel()
	health := bench.Task{
		Name: "etcdctl endpoint health", Argv: []string{c.etcdctl, "--endpoints=" + client, "endpoint", "health"}, Env: bench.Environ(),
	}
	for {
		if _, err = health.Run(ctx); err == nil {
			return client, stop, nil
		}
		select {
		case <-gone:
			return "", nil, fmt.Errorf("start etcd: it ended at once\n%s", said)
		case <-ctx.Done():
			return "", nil, errors.Join(fmt.Errorf("start etcd: %w", context.Cause(ctx)), err, stop())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// freeAddress returns the URL of a loopback port that nobody listens on now.
func freeAddress(ctx context.Context) (string, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return "http://" + listener.Addr().String(), listener.Close()
}
