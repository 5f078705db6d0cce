package local

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Secrets are made for each demo and kept in its state file only.
type Secrets struct {
	Super, Migrate, App, Agent, Applier string // database passwords
	Operator                            string // bearer key of the admin APIs
	Claims                              string // key of the phone hashes
	Numbers                             string // key of the order numbers
	Cursors                             string // key that signs list cursors
	Console                             string // the console's first password
}

// Cell is where to reach one cell.
type Cell struct {
	Name    string `json:"name"`
	Gateway string `json:"gateway"` // http://...
	Agent   string `json:"agent"`   // http://..., local API with the admin routes
	PG      string `json:"pg"`      // administrator's connection, for tests
	NATS    string `json:"nats"`
}

// State is .demo/state.json.
type State struct {
	Way         string    `json:"way"`               // local, or compose: no Processes, no databases' addresses
	Project     string    `json:"project,omitempty"` // compose: its name
	PortBase    int       `json:"port_base"`
	Edge        string    `json:"edge"` // http://...
	Console     string    `json:"console,omitempty"`
	OperatorKey string    `json:"operator_key"`
	Global      Cell      `json:"global"`
	IDGenPG     string    `json:"idgen_pg"`
	Control     string    `json:"control"` // http://...
	Cells       []Cell    `json:"cells"`
	Data        string    `json:"data"`
	Complete    bool      `json:"complete"` // everything was started once
	Seeded      bool      `json:"seeded"`
	Secrets     Secrets   `json:"secrets"`
	Processes   []Process `json:"processes"`
	path        string
}

// ErrNoDemo says that there is no state file: nothing is up.
var ErrNoDemo = errors.New("no demo is up here: start one with scripts/demo")

// Load reads the state of the demo in root.
func Load(root string) (*State, error) {
	path := filepath.Join(root, ".demo", "state.json")
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoDemo
	}
	if err != nil {
		return nil, err
	}
	s := &State{path: path}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Save writes the state of a demo in root that something else started.
func (s *State) Save(root string) error {
	s.path = filepath.Join(root, ".demo", "state.json")
	return s.save()
}

// save writes the file whole or not at all.
func (s *State) save() error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	tmp := s.path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, s.path)
}

// Process finds a process by its name, c1/order.
func (s *State) Process(name string) (*Process, error) {
	for i := range s.Processes {
		if s.Processes[i].Name == name {
			return &s.Processes[i], nil
		}
	}
	return nil, fmt.Errorf("the demo has no process %q", name)
}

// Cell finds a cell by name.
func (s *State) Cell(name string) (Cell, error) {
	for _, c := range append([]Cell{s.Global}, s.Cells...) {
		if c.Name == name {
			return c, nil
		}
	}
	return Cell{}, fmt.Errorf("there is no cell %q", name)
}

func newSecrets() Secrets {
	random := func() string {
		var b [32]byte
		_, _ = rand.Read(b[:]) // never fails, by its contract
		return hex.EncodeToString(b[:])
	}
	return Secrets{
		Super: random(), Migrate: random(), App: random(), Agent: random(), Applier: random(),
		Operator: random(), Claims: random(), Numbers: random(), Cursors: random(),
		Console: random()[:32],
	}
}
