package bank

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/user/userapi"
)

// account is a person's money in one currency.
type account struct {
	who      int
	currency string
}

// write is something that somebody asked for under a key, and what came of it. All
// that the books at the end are compared with is made of these answers.
type write struct {
	kind     kind
	who, to  int // people; a refund goes to the payer of what it gives back
	currency string
	amount   int64 // asked for
	path     string
	key      string
	body     any
	of       id.ID // refund: the transfer whose money it gives back

	known    bool
	refused  string    // known, and nothing moved: why
	id       id.ID     // of what was made
	took     int64     // amount that it was made with
	answered time.Time // when it was first known
	state    string    // of a transfer or refund, at the end
	lost     []id.ID   // were answered, and went with the last moments of a slot's owner
}

// book is everything that was asked for.
type book struct {
	mu     sync.Mutex
	writes []*write
	made   []*write // transfers that were begun
}

func (b *book) add(w *write) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writes = append(b.writes, w)
}

// answered says that somebody was told that a write was done.
func (b *book) answered(w *write) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return w.known && w.id != 0
}

// all gives the writes so far.
func (b *book) all() []*write {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.writes)
}

// pick gives one of the last transfers that were begun, nil when there is none:
// what is long over can't be cancelled any more.
func (b *book) pick(n uint64, last int) *write {
	b.mu.Lock()
	defer b.mu.Unlock()
	from := b.made[max(0, len(b.made)-last):]
	if len(from) == 0 {
		return nil
	}
	return from[n%uint64(len(from))]
}

// take notes an answer. The answer to the same question may only be the same, or,
// where lossy says that the slot's owner has lost its last moments since, another
// one that was made anew. It gives what is wrong, "" for nothing.
func (b *book) take(w *write, a answer, lossy bool) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var made struct {
		ID     id.ID  `json:"id"`
		Amount int64  `json:"amount"`
		State  string `json:"state"`
	}
	now, refused, did := time.Now(), "", id.ID(0)
	if a.ok() {
		if err := json.Unmarshal(a.body, &made); err != nil || made.ID == 0 {
			return fmt.Sprintf("%s under key %s: %d %.100s is no answer", w.kind, w.key, a.status, a.body)
		}
		did = made.ID
	} else {
		refused = code(a)
	}
	first := !w.known
	if !first && (w.id != did || w.refused != refused) {
		if !lossy {
			return fmt.Sprintf("%s under key %s was answered %s%s, and asked again %s%s", w.kind, w.key, w.id, w.refused, did, refused)
		}
		if w.id != 0 && w.id != did {
			w.lost = append(w.lost, w.id)
		}
	}
	if first {
		w.answered = now
	}
	w.known, w.id, w.refused, w.took = true, did, refused, 0
	if did != 0 {
		w.took = made.Amount
	}
	if first && did != 0 && w.kind == transfers {
		b.made = append(b.made, w)
	}
	if did != 0 && w.kind != refunds && made.Amount != w.amount {
		return fmt.Sprintf("%s under key %s asked for %d and got %d", w.kind, w.key, w.amount, made.Amount)
	}
	return ""
}

// code of a refusal.
func code(a answer) string {
	var problem struct{ Code string }
	if json.Unmarshal(a.body, &problem) == nil && problem.Code != "" {
		return problem.Code
	}
	return fmt.Sprintf("%d %s", a.status, http.StatusText(a.status))
}

// expected adds up what each account must have, from what it had before.
func (b *book) expected(before map[account]int64) map[account]int64 {
	out := map[account]int64{}
	for a, n := range before {
		out[a] += n
	}
	for _, w := range b.all() {
		from := account{w.who, w.currency}
		switch {
		case w.id == 0:
		case w.kind == deposits:
			out[from] += w.took
		case w.kind == withdraws:
			out[from] -= w.took
		case w.state == settled: // transfers and refunds
			out[from] -= w.took
			out[account{w.to, w.currency}] += w.took
		}
	}
	return out
}

// The ends of a transfer.
const (
	settled  = "SETTLED"
	reversed = "REVERSED"
	rejected = "REJECTED"
)

// ended says that a transfer's state is an end.
func ended(state string) bool { return state == settled || state == reversed || state == rejected }

// statement checks that each line of a statement, newest first, follows from the one
// before: I3 of each posting, as its owner sees it.
func statement(items []userapi.Entry) string {
	for i, e := range items {
		switch {
		case e.Amount <= 0 || e.From == e.To || e.Available < 0 || e.Frozen < 0:
			return fmt.Sprintf("line %d (%s %s) moves %d from %s to %s and leaves %d, %d", e.Seq, e.Ref, e.Step, e.Amount, e.From, e.To, e.Available, e.Frozen)
		case i+1 == len(items):
			return ""
		}
		old := items[i+1]
		if e.Seq != old.Seq+1 || e.Available-old.Available != moved(e, "available") || e.Frozen-old.Frozen != moved(e, "frozen") {
			return fmt.Sprintf("line %d (%s %s: %d from %s to %s) leaves %d, %d; line %d left %d, %d",
				e.Seq, e.Ref, e.Step, e.Amount, e.From, e.To, e.Available, e.Frozen, old.Seq, old.Available, old.Frozen)
		}
	}
	return ""
}

func moved(e userapi.Entry, account string) int64 {
	switch account {
	case e.To:
		return e.Amount
	case e.From:
		return -e.Amount
	}
	return 0
}

// twice gives the transfers whose money came to an account more than once, and wasn't
// taken back.
func twice(items []userapi.Entry) (out []string) {
	came := map[string]int{}
	for _, e := range items {
		switch {
		case e.From == "clearing" && e.To == "available":
			came[e.Ref]++
		case e.From == "available" && e.To == "clearing":
			came[e.Ref]--
		}
	}
	for ref, n := range came {
		if n > 1 {
			out = append(out, ref)
		}
	}
	slices.Sort(out)
	return out
}
