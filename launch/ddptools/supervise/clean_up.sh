# Ends the processes that have the $mark of a job in their command or environment. Removes the folder $sessions of Open
# MPI's files for the job, and files of shared memory that Open MPI made for this user, if they are older than 2 s and
# nobody uses them. sh reads this from standard input, so that its own command has no mark.
for file in $(grep -lsF -f - /proc/[0-9]*/cmdline /proc/[0-9]*/environ <<END
$mark
END
); do
  process=${file#/proc/}
  kill -KILL ${process%%/*} 2>/dev/null
done
sleep 0.2
rm -rf "$sessions"
for file in /dev/shm/vader_segment.* /dev/shm/sm_segment.*; do
  [ -O "$file" ] && [ $(($(date +%s) - $(stat -c %Y "$file"))) -gt 2 ] && ! grep -qsF "$file" /proc/[0-9]*/maps &&
    rm -f "$file"
done
true
