package console

import (
	"context"
	"strings"
	"time"
)

// Job is something that an operator wants done, and what came of it.
type Job struct {
	ID       string
	Kind     string
	Args     Args
	Operator string
	Reason   string
	State    string // agentapi.JobOpen, JobDone, JobFailed
	Detail   string
	At       time.Time
	Ended    *time.Time
}

// Event is a line of the log.
type Event struct {
	Seq      int64
	At       time.Time
	Operator string
	What     string // one of the following
	Subject  string // the cell, link or transfer; of a session nothing
	Detail   string
}

// Job is the ID of the job that the event is about, "" of any other event: a job's
// detail begins with its kind and its ID.
func (e Event) Job() string {
	words := strings.Fields(e.Detail)
	if (e.What != eventJob && e.What != eventDone && e.What != eventFailed) || len(words) < 2 {
		return ""
	}
	return strings.TrimSuffix(words[1], ":")
}

// What events tell.
const (
	eventOperator = "operator"
	eventPassword = "password"
	eventSignIn   = "sign-in"
	eventSignOut  = "sign-out"
	eventJob      = "job"
	eventDone     = "job-done"
	eventFailed   = "job-failed"
)

// eventKinds lists them for the filter.
var eventKinds = []string{eventOperator, eventPassword, eventSignIn, eventSignOut, eventJob, eventDone, eventFailed}

// Filter says which events are asked for; what is empty counts as any.
type Filter struct {
	Operator, What, Subject string
	Before                  int64 // seq; 0 = from the newest
}

// sessionKey is the SHA-256 of a session's token.
type sessionKey [32]byte

// records is what is kept in the database. A session, a job and their events are
// kept in one transaction.
type records interface {
	// firstOperator makes an operator while there is none; tell is called before that is kept, and its error keeps nothing.
	firstOperator(ctx context.Context, name, hash string, tell func() error) (made bool, err error)
	operators(ctx context.Context) (int, error)
	operatorHash(ctx context.Context, name string) (string, error) // "" = nobody is called that
	// setHash replaces an operator's hash, if it's the old one still, and ends their other sessions.
	setHash(ctx context.Context, name, old, hash string, keep sessionKey) (done bool, err error)
	addSession(ctx context.Context, key sessionKey, operator string, ends time.Time) error
	session(ctx context.Context, key sessionKey) (operator string, ends time.Time, err error) // "" = there is none, or it has ended
	endSession(ctx context.Context, key sessionKey) error
	addJob(ctx context.Context, j Job) (Job, error) // the same ID again is the same job
	job(ctx context.Context, id string) (Job, error)
	openJobs(ctx context.Context) ([]Job, error)
	endJob(ctx context.Context, j Job) error // nothing happens to one that has ended
	events(ctx context.Context, f Filter, limit int) ([]Event, error)
}
