# SPDX-License-Identifier: MIT
# Draws the week of a service: gnuplot -e "folder='...'" service.gnuplot
#
# Reads service-kept.tsv and service-decayed.tsv of service.py; writes services.svg.
set terminal svg size 1200,430 dynamic noenhanced font "sans-serif,14" background rgb "white"
set output folder . "/services.svg"

set style fill solid 1.0 noborder
set border 3 lc rgb "#888888"
set tics nomirror scale 0.5 textcolor rgb "#444444"
set grid ytics lc rgb "#e4e4e4" lw 1 lt 1
set yrange [0:*]
GiB = 1073741824.0
day = 86400e6
hour = 3600e6
kept = folder . "/service-kept.tsv"
decayed = folder . "/service-decayed.tsv"

# One legend for both panels, above them.
set key off
set arrow 1 from screen 0.060,0.95 to screen 0.085,0.95 nohead lw 3 lc rgb "#d1622b"
set label 1 "reserved, never released" at screen 0.092,0.95 left
set arrow 2 from screen 0.370,0.95 to screen 0.395,0.95 nohead lw 3 lc rgb "#1f6fb4"
set label 2 "reserved, idle_ms:180000" at screen 0.402,0.95 left
set object 3 rectangle from screen 0.650,0.93 to screen 0.675,0.97 fc rgb "#b9c4cf" fs solid noborder
set label 3 "live: allocated by the service" at screen 0.682,0.95 left

set multiplot
set tmargin at screen 0.81
set bmargin at screen 0.15

set lmargin at screen 0.055
set rmargin at screen 0.505
set title "A week with two models" textcolor rgb "#222222" offset 0,-0.3
set ylabel "device memory (GiB)" textcolor rgb "#444444" offset 1,0
set xlabel "days" textcolor rgb "#444444" offset 0,0.3
set xrange [0:7]
set xtics 1
plot decayed using ($1/day):($3/GiB) with filledcurves y1=0 lc rgb "#b9c4cf", \
     kept using ($1/day):($4/GiB) with lines lw 2 lc rgb "#d1622b", \
     decayed using ($1/day):($4/GiB) with lines lw 1.5 lc rgb "#1f6fb4"
unset label
unset arrow
unset object
unset ylabel

set lmargin at screen 0.545
set rmargin at screen 0.985
set title "The second day" textcolor rgb "#222222" offset 0,-0.3
set xlabel "hours" textcolor rgb "#444444" offset 0,0.3
set xrange [6:24]
set xtics 3
plot decayed using ($1/hour-24):($3/GiB) with filledcurves y1=0 lc rgb "#b9c4cf", \
     kept using ($1/hour-24):($4/GiB) with lines lw 2 lc rgb "#d1622b", \
     decayed using ($1/hour-24):($4/GiB) with lines lw 2 lc rgb "#1f6fb4"
unset multiplot
