package local

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// A part is a process with its children; one that has ended is not alive and needs
// nothing.
func TestParts(t *testing.T) {
	t.Parallel()
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	self := Process{Name: "c1/order", PID: os.Getpid()}
	self.Start, _ = startTime(self.PID)
	again := self
	again.Name, again.Start = "c1/postgres", self.Start+1 // its id is another process's now
	s := &State{Processes: []Process{self, again}}
	got, err := s.Parts()
	if err != nil {
		t.Fatal(err)
	}
	own, err := PSS([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	if p := got[0]; p.Name != "c1/order" || !p.Alive || p.Started == got[1].Started || p.Limit != 192<<20 || p.Memory < own/2 {
		t.Errorf("%+v, of which %d bytes are of the process itself", p, own)
	}
	if p := got[1]; p.Alive || p.Memory != 0 || p.Limit != 512<<20 {
		t.Errorf("a process that has ended: %+v", p)
	}
	_, pids, err := s.spent()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, pid := range pids[os.Getpid()] {
		found = found || pid == child.Process.Pid
	}
	if !found {
		t.Errorf("processes %v, want the child %d among them", pids, child.Process.Pid)
	}
}

// TestCPU: time that a process of the demo spends is seen.
func TestCPU(t *testing.T) {
	self := Process{Name: "c1/order", PID: os.Getpid()}
	self.Start, _ = startTime(self.PID)
	s := &State{Processes: []Process{self}}
	before, err := s.CPU()
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(time.Minute)
	for {
		after, err := s.CPU() // costs some itself
		if err != nil || time.Now().After(end) {
			t.Fatalf("%s before, %s after: %v", before, after, err)
		}
		if d := after - before; d >= 50*time.Millisecond {
			if d > 3*time.Minute { // on more than one core
				t.Errorf("%s in at most a minute", d)
			}
			return
		}
	}
}
