package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"path/filepath"
	"sync"

	"example.com/cellmart/deploy/compose"
	"example.com/cellmart/deploy/local"
	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

// fleet is the agents of a running demo.
type fleet struct {
	state  *local.State
	key    ed25519.PublicKey
	global *agentapi.Client
	cells  map[string]*agentapi.Client
	names  []string // of the cells, in order
}

// state is that of the demo in the checkout. One that `docker compose up` started
// by hand has no state file yet: the engine is asked.
func (c *cli) state(ctx context.Context) (*local.State, error) {
	s, none := local.Load(c.root)
	if !errors.Is(none, local.ErrNoDemo) {
		return s, none
	}
	var bad cellkit.Usage
	s, err := compose.Find(ctx, c.root)
	if err == nil || errors.As(err, &bad) {
		return s, err
	}
	return nil, none // without an engine there is nothing to find either
}

func (c *cli) fleet(ctx context.Context) (*fleet, error) {
	s, err := c.state(ctx)
	if err != nil {
		return nil, err
	}
	key, err := link.LoadPublicKey(filepath.Join(c.root, ".demo", "pki", "control.pub"))
	if err != nil {
		return nil, err
	}
	client := func(at local.Cell) *agentapi.Client {
		return &agentapi.Client{BaseURL: at.Agent, Key: key, OperatorKey: s.OperatorKey}
	}
	f := &fleet{state: s, key: key, global: client(s.Global), cells: map[string]*agentapi.Client{}}
	for _, cell := range s.Cells {
		f.cells[cell.Name] = client(cell)
		f.names = append(f.names, cell.Name)
	}
	return f, nil
}

// control is asked by way of the global zone's agent: it listens for agents only.
func (f *fleet) control() *controlapi.Client {
	return &controlapi.Client{BaseURL: f.global.BaseURL + "/admin/control", Key: f.key, OperatorKey: f.global.OperatorKey}
}

// zone gives the agent of a cell, or of the global zone.
func (f *fleet) zone(name string) (*agentapi.Client, error) {
	if name == f.state.Global.Name {
		return f.global, nil
	}
	if a, ok := f.cells[name]; ok {
		return a, nil
	}
	return nil, usage("there is no cell %q; there are %v and %s", name, f.names, f.state.Global.Name)
}

// ask calls every cell's agent at the same time: one that doesn't answer leaves
// an error in its own place and takes nothing from the others.
func ask[T any](f *fleet, call func(*agentapi.Client) (T, error)) (map[string]T, map[string]error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	got, failed := map[string]T{}, map[string]error{}
	for name, a := range f.cells {
		wg.Go(func() {
			v, err := call(a)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[name] = err
				return
			}
			got[name] = v
		})
	}
	wg.Wait()
	return got, failed
}
