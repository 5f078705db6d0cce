package local

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit"
)

// root makes a folder with something that stands for the binary.
func root(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", "cellmart"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestBadOptionsAreUsageErrors(t *testing.T) {
	for name, o := range map[string]Options{
		"one cell":       {Root: root(t), Cells: 1},
		"nine cells":     {Root: root(t), Cells: 9},
		"negative cells": {Root: root(t), Cells: -3},
		"system port":    {Root: root(t), PortBase: 80},
		"port too high":  {Root: root(t), PortBase: 65100},
		"not built":      {Root: t.TempDir()},
	} {
		_, err := Up(t.Context(), o)
		var usage cellkit.Usage
		if !errors.As(err, &usage) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line of usage", name, err)
		}
		if _, err := os.Stat(filepath.Join(o.Root, ".demo")); err == nil {
			t.Errorf("%s: left a .demo folder", name)
		}
	}
}

func TestBusyPortIsNamedAndNothingIsLeft(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := root(t)
	base := l.Addr().(*net.TCPAddr).Port // the edge's
	if base > 64000 {
		base -= 21 // gateway c1's
	}
	_, err = Up(t.Context(), Options{Root: dir, PortBase: base})
	var usage cellkit.Usage
	if !errors.As(err, &usage) || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("Up on a busy port = %v, want usage that names %s", err, l.Addr())
	}
	if _, err := os.Stat(filepath.Join(dir, ".demo")); err == nil {
		t.Error("a .demo folder was left")
	}
}

// No two processes listen on one address, and each zone keeps to its own range.
func TestPortsDoNotCollide(t *testing.T) {
	l := &layout{o: Options{Cells: 8, PortBase: 8080, Bin: "/b"}, dir: "/d", data: "/d/data", secrets: newSecrets()}
	all := append(l.stores(programs{pgBin: "/pg", redis: "/redis"}), l.services()...)
	seen := map[string]bool{}
	for _, a := range addresses(all) {
		if seen[a] {
			t.Errorf("%s is taken twice", a)
		}
		seen[a] = true
	}
	names := map[string]bool{}
	for _, p := range all {
		if names[p.Name] {
			t.Errorf("two processes are named %s", p.Name)
		}
		names[p.Name] = true
	}
	if last := l.port(8, portsPerZone-1); last > 8080+399 {
		t.Errorf("ports go up to base+%d, others rely on +399", last-8080)
	}
}

func TestSecretsAreNotReused(t *testing.T) {
	s := newSecrets()
	seen := map[string]bool{}
	for _, v := range []string{s.Super, s.Migrate, s.App, s.Agent, s.Applier, s.Operator, s.Claims, s.Numbers, s.Cursors, s.Console} {
		if len(v) < 32 || seen[v] {
			t.Errorf("secret %q is short or used twice", v)
		}
		seen[v] = true
	}
}

func TestStateIsPrivateAndComesBack(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); !errors.Is(err, ErrNoDemo) {
		t.Errorf("Load without a demo = %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, ".demo"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := &State{Way: "local", PortBase: 8080, Cells: []Cell{{Name: "c1"}}, path: filepath.Join(dir, ".demo", "state.json")}
	s.note(Process{Name: "c1/order", PID: 1})
	s.note(Process{Name: "c1/order", PID: 2})
	if err := s.save(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(s.path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("state.json has mode %v, want 0600 (%v)", info.Mode(), err)
	}
	back, err := Load(dir)
	if err != nil || len(back.Processes) != 1 || back.Processes[0].PID != 2 {
		t.Errorf("loaded %+v, %v", back, err)
	}
}

// A process id that was given to another process is never taken for ours.
func TestAliveLooksAtTheStartTime(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "cat") // reads its open input until it is killed
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, ok := startTime(cmd.Process.Pid)
	if !ok {
		t.Fatal("no start time")
	}
	p := Process{Name: "x", PID: cmd.Process.Pid, Start: start}
	other := Process{Name: "x", PID: cmd.Process.Pid, Start: start + 1}
	if !p.Alive() || other.Alive() {
		t.Errorf("alive: ours %v, another with that id %v", p.Alive(), other.Alive())
	}
	if err := other.Signal(syscall.SIGKILL); err == nil {
		t.Error("another process was signalled")
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Wait(ctx); err != nil { // a zombie counts as gone
		t.Error(err)
	}
	_ = cmd.Wait()
}

// A store can be lost, or go back to how it was, with the server killed.
func TestStoreIsLostOrGoesBack(t *testing.T) {
	redis, err := exec.LookPath("redis-server") // a server that can be killed and is soon ready
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	dir := t.TempDir()
	store := filepath.Join(dir, "store")
	if err := errors.Join(os.MkdirAll(filepath.Join(store, "stream"), 0o755), os.Mkdir(filepath.Join(dir, "logs"), 0o755)); err != nil {
		t.Fatal(err)
	}
	has := func() string {
		b, err := os.ReadFile(filepath.Join(store, "stream", "1.blk"))
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(store, "stream", "1.blk"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := &State{path: filepath.Join(dir, "state.json")}
	if err := s.launch(t.Context(), []Process{{
		Name: "c1/nats", Argv: []string{redis, "--port", port, "--bind", "127.0.0.1", "--save", ""}, Dir: dir,
		Env: map[string]string{"NATS_DIR": store}, Ready: "tcp://127.0.0.1:" + port,
	}}); err != nil {
		t.Fatal(err)
	}
	s.note(Process{Name: "c1/order"})
	p, err := s.Process("c1/nats")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Signal(syscall.SIGKILL) })
	write("then")
	first := p.PID
	if err := s.KeepStore("c1/nats"); err != nil {
		t.Fatal(err)
	}
	write("now")
	if err := s.LoseStore(t.Context(), "c1/nats", true); err != nil || has() != "then" || p.PID == first || !p.Alive() {
		t.Errorf("back: %v, the store has %q", err, has())
	}
	if err := s.LoseStore(t.Context(), "c1/nats", true); err == nil {
		t.Error("it went back twice with one copy")
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(store, "stream"), 0o755), s.DropStoreCopy(t.Context(), "c1/nats")); err != nil || !p.Alive() {
		t.Errorf("mended: %v, alive %v", err, p.Alive())
	}
	write("now")
	if err := s.LoseStore(t.Context(), "c1/nats", false); err != nil || !p.Alive() {
		t.Errorf("lost: %v", err)
	}
	if _, err := os.Stat(store); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lost store is there: %v", err)
	}
	if err := s.LoseStore(t.Context(), "c1/order", false); err == nil {
		t.Error("a process without a store lost it")
	}
}
