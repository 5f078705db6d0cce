package clock

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

const file = "clock.json"

// Source is the agent's side: it keeps the offset and tells it.
type Source struct {
	Clock // the agent's own

	path    string
	mu      sync.Mutex
	changed chan struct{} // closed at the next change
}

// NewSource takes up the offset that was set last, from a file in dir.
func NewSource(dir string, log *slog.Logger) *Source {
	s := &Source{path: filepath.Join(dir, file), changed: make(chan struct{})}
	b, err := os.ReadFile(s.path)
	var was state
	if err == nil {
		err = json.Unmarshal(b, &was)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil || was.offset().Abs() > Most:
		log.Error("the clock's offset is unknown, there is none now", "file", s.path, "error", err)
	default:
		s.set(was.offset())
	}
	return s
}

// Set stores an offset and tells everyone.
func (s *Source) Set(d time.Duration) error {
	d = d.Truncate(time.Millisecond)
	if d.Abs() > Most {
		return errs.Field("offset_ms", "is further than %v", Most)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.store(d); err != nil {
		return err
	}
	s.set(d)
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// store writes the file whole or not at all; no offset has no file.
func (s *Source) store(d time.Duration) error {
	if d == 0 {
		if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	f, err := os.Create(s.path + ".new")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "{\"offset_ms\":%d}\n", d.Milliseconds())
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), s.path)
}

// ServeHTTP answers GET: at once, or with have_ms=N when the offset is another
// one, or after a while.
func (s *Source) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if text := r.URL.Query().Get("have_ms"); text != "" {
		have, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			http.Error(w, "have_ms is not a number", http.StatusBadRequest)
			return
		}
		s.wait(r, have)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(state{s.Offset().Milliseconds()}) // who asked has gone
}

func (s *Source) wait(r *http.Request, have int64) {
	s.mu.Lock()
	changed, is := s.changed, s.Offset().Milliseconds()
	s.mu.Unlock()
	if is != have {
		return
	}
	timer := time.NewTimer(hold)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-r.Context().Done():
	}
}
