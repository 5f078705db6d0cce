package cdc

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// connect opens a replication connection.
func (r *Relay) connect(ctx context.Context) (*pgconn.PgConn, error) {
	cfg, err := pgconn.ParseConfig(r.o.DSN)
	if err != nil {
		return nil, err
	}
	cfg.ConnectTimeout = 2 * time.Second
	cfg.RuntimeParams["replication"] = "database"
	cfg.RuntimeParams["timezone"] = "UTC"
	cfg.RuntimeParams["application_name"] = "cellmart-cdc"
	cfg.BuildFrontend = func(in io.Reader, out io.Writer) *pgproto3.Frontend {
		return pgproto3.NewFrontend(bufio.NewReaderSize(&coarse{in: in}, 256<<10), out)
	}
	return pgconn.ConnectConfig(ctx, cfg)
}

func closeConn(ctx context.Context, conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server notices either way
}

// coarse reads at most once in a millisecond: the server sends each of its
// messages by itself, and gathering them costs both sides less.
type coarse struct {
	in   io.Reader
	last time.Time
}

// Read implements io.Reader.
func (c *coarse) Read(p []byte) (int, error) {
	if wait := coarseStep - time.Since(c.last); wait > 0 {
		time.Sleep(wait)
	}
	n, err := c.in.Read(p)
	c.last = time.Now()
	return n, err
}

// wire is the replication connection, used by one goroutine.
type wire struct {
	conn *pgconn.PgConn
	out  *outlet
	told LSN
	at   time.Time // of the last status

	moved func() // called when the server has read on
	end   pglogrepl.LSN
}

// settle tells Postgres what the stream has acknowledged, at most ten times a
// second.
func (w *wire) settle(ctx context.Context) error {
	confirmed, _, err := w.out.settled()
	if err != nil {
		return err
	}
	since := time.Since(w.at)
	if confirmed > w.told && since > 100*time.Millisecond || since > statusEvery {
		return w.status(ctx)
	}
	return nil
}

func (w *wire) status(ctx context.Context) error {
	confirmed, _, err := w.out.settled()
	if err != nil {
		return err
	}
	w.told, w.at = confirmed, time.Now()
	return pglogrepl.SendStandbyStatusUpdate(ctx, w.conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: pglogrepl.LSN(confirmed)})
}

// refused tells Postgres what a stream took before it refused a message. Without
// this the next session would begin with the same messages again, and a stream
// with less room than the backlog would never get beyond them.
func (w *wire) refused(ctx context.Context) {
	confirmed, _, err := w.out.settled()
	if err == nil || confirmed <= w.told {
		return
	}
	_ = pglogrepl.SendStandbyStatusUpdate(ctx, w.conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: pglogrepl.LSN(confirmed)}) // lost: they come twice
}

// receive gives one message of pgoutput, or nothing after a while: soon when
// there is something to tell Postgres.
func (w *wire) receive(ctx context.Context) (data []byte, reply bool, err error) {
	limit := statusEvery / 2
	if confirmed, inFlight, _ := w.out.settled(); inFlight > 0 || confirmed > w.told {
		limit = 50 * time.Millisecond
	}
	_ = w.conn.Conn().SetReadDeadline(time.Now().Add(limit)) // fails only on a closed connection
	if ctx.Err() != nil {
		return nil, false, ctx.Err()
	}
	// No context here: one watched for each message would cost more than the message.
	msg, err := w.conn.ReceiveMessage(context.Background())
	if err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return nil, false, ctx.Err()
		}
		return nil, false, err
	}
	switch m := msg.(type) {
	case *pgproto3.ErrorResponse:
		return nil, false, pgconn.ErrorResponseToPgError(m)
	case *pgproto3.CopyData:
		switch m.Data[0] {
		case pglogrepl.PrimaryKeepaliveMessageByteID:
			// Its position says how far the server has read, not what was published: it confirms nothing.
			k, err := pglogrepl.ParsePrimaryKeepaliveMessage(m.Data[1:])
			if k.ServerWALEnd > w.end {
				w.end = k.ServerWALEnd
				w.moved()
			}
			return nil, k.ReplyRequested, err
		case pglogrepl.XLogDataByteID:
			w.moved()
			x, err := pglogrepl.ParseXLogData(m.Data[1:])
			return x.WALData, false, err
		}
	case *pgproto3.CopyDone:
		return nil, false, io.EOF
	}
	return nil, false, nil
}
