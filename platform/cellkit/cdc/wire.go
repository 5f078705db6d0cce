package cdc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// connect opens a replication connection.
func (r *Relay) connect(ctx context.Context) (*pgconn.PgConn, *frames, error) {
	cfg, err := pgconn.ParseConfig(r.o.DSN)
	if err != nil {
		return nil, nil, err
	}
	f := &frames{}
	cfg.ConnectTimeout = 2 * time.Second
	cfg.RuntimeParams["replication"] = "database"
	cfg.RuntimeParams["timezone"] = "UTC"
	cfg.RuntimeParams["application_name"] = "cellmart-cdc"
	cfg.BuildFrontend = func(in io.Reader, out io.Writer) *pgproto3.Frontend {
		*f = frames{in: in, buf: make([]byte, 64<<10)}
		return pgproto3.NewFrontend(f, out)
	}
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	if c, ok := conn.Conn().(syscall.Conn); ok {
		f.raw, _ = c.SyscallConn() // nil without one
	}
	return conn, f, nil
}

func closeConn(ctx context.Context, conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server notices either way
}

const coarseStep = time.Millisecond

// frames cuts what the server sends into its messages. While commands are given,
// the library reads through it, and never gets more than it is about to use; once
// the WAL streams, next gives message after message without a copy.
//
// It then reads at most once in a millisecond: the server sends each of its
// messages by itself, and gathering them costs both sides less.
type frames struct {
	in     io.Reader
	buf    []byte
	r, w   int
	left   int // of the message that Read has begun
	stream bool
	last   time.Time
	raw    syscall.RawConn // the connection, nil = not known
}

const headBytes = 5 // a letter, and the length that counts itself but not the letter

// Read implements io.Reader.
func (f *frames) Read(p []byte) (int, error) {
	if f.left == 0 {
		for f.w-f.r < headBytes {
			if err := f.fill(); err != nil {
				return 0, err
			}
		}
		f.left = 1 + int(binary.BigEndian.Uint32(f.buf[f.r+1:]))
	}
	if f.r == f.w {
		if err := f.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p[:min(len(p), f.left)], f.buf[f.r:f.w])
	f.r, f.left = f.r+n, f.left-n
	return n, nil
}

// fill reads once, and makes room for it.
func (f *frames) fill() error {
	if f.stream {
		if wait := coarseStep - time.Since(f.last); wait > 0 {
			f.wakeAt(len(f.buf))
			time.Sleep(wait)
			f.wakeAt(1)
		}
	}
	if f.r > 0 {
		f.w = copy(f.buf, f.buf[f.r:f.w])
		f.r = 0
	}
	if f.w == len(f.buf) {
		f.buf = append(f.buf, make([]byte, len(f.buf))...)
	}
	n, err := f.in.Read(f.buf[f.w:])
	f.w += n
	f.last = time.Now()
	if n > 0 {
		return nil
	}
	return err
}

// wakeAt has the kernel wake this process only for so many bytes. The runtime
// waits for all connections while a goroutine sleeps, so each of the server's
// messages would cost both sides a wake-up that serves nobody.
func (f *frames) wakeAt(bytes int) {
	if f.raw != nil { // where it can't be set, that is all that is lost
		_ = f.raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, bytes) })
	}
}

// next gives a message that is whole in the buffer, valid until the next fill.
func (f *frames) next() (kind byte, body []byte, ok bool) {
	if f.w-f.r < headBytes {
		return 0, nil, false
	}
	n := 1 + int(binary.BigEndian.Uint32(f.buf[f.r+1:]))
	if n < headBytes || f.w-f.r < n {
		return 0, nil, false
	}
	kind, body = f.buf[f.r], f.buf[f.r+headBytes:f.r+n]
	f.r += n
	return kind, body, true
}

// wire is the replication connection, used by one goroutine.
type wire struct {
	conn      *pgconn.PgConn
	frames    *frames
	confirmed func() LSN // what every sink has stored
	told      LSN
	at        time.Time // of the last status

	moved func() // called when the server has read on
	end   uint64
}

// settle tells Postgres what may go, at most ten times a second; and that we are
// there, well within any sane wal_sender_timeout.
func (w *wire) settle(ctx context.Context) error {
	since := time.Since(w.at)
	if since < 100*time.Millisecond {
		return nil
	}
	if since > statusEvery || w.confirmed() > w.told {
		return w.status(ctx)
	}
	return nil
}

func (w *wire) status(ctx context.Context) error {
	w.told, w.at = max(w.told, w.confirmed()), time.Now()
	return pglogrepl.SendStandbyStatusUpdate(ctx, w.conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: pglogrepl.LSN(w.told)})
}

// receive gives one message of pgoutput. idle is called whenever all that was
// received is done, and says whether to go on waiting only briefly.
func (w *wire) receive(ctx context.Context, idle func() (brief bool, err error)) (data []byte, err error) {
	for {
		kind, body, ok := w.frames.next()
		if !ok {
			if err := w.more(ctx, idle); err != nil {
				return nil, err
			}
			continue
		}
		switch {
		case kind == 'd' && len(body) > 24 && body[0] == pglogrepl.XLogDataByteID:
			return body[25:], nil
		case kind == 'd' && len(body) >= 18 && body[0] == pglogrepl.PrimaryKeepaliveMessageByteID:
			// Its position says how far the server has read, not what was published: it confirms nothing.
			if end := binary.BigEndian.Uint64(body[1:]); end > w.end {
				w.end = end
				w.moved()
			}
			if body[17] != 0 {
				if err := w.status(ctx); err != nil {
					return nil, err
				}
			}
		case kind == 'E':
			var e pgproto3.ErrorResponse
			if err := e.Decode(body); err != nil {
				return nil, err
			}
			return nil, pgconn.ErrorResponseToPgError(&e)
		case kind == 'c':
			return nil, io.EOF
		case kind == 'N' || kind == 'S':
		default:
			return nil, fmt.Errorf("the server sent a message %q, which isn't expected", kind)
		}
	}
}

func (w *wire) more(ctx context.Context, idle func() (bool, error)) error {
	brief, err := idle()
	if err != nil {
		return err
	}
	limit := statusEvery / 2
	if brief {
		limit = 20 * time.Millisecond
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_ = w.conn.Conn().SetReadDeadline(time.Now().Add(limit)) // fails only on a closed connection
	before := w.frames.w
	if err := w.frames.fill(); err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return ctx.Err()
		}
		return err
	}
	if w.frames.w != before {
		w.moved()
	}
	return nil
}
