{{/* Names, labels, and what all pods have in common. */}}

{{- define "kafka-timers.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{/* Of a list of the root and a component. */}}
{{- define "kafka-timers.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "kafka-timers.labels" -}}
{{- $root := index . 0 -}}
{{ include "kafka-timers.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{/* Of a list of the root and the image of a component, which goes over that of all. */}}
{{- define "kafka-timers.imageName" -}}
{{- $root := index . 0 -}}
{{- $image := merge (dict) (index . 1) $root.Values.image -}}
{{ printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) }}
{{- end }}

{{- define "kafka-timers.image" -}}
{{- $root := index . 0 -}}
image: {{ include "kafka-timers.imageName" . | quote }}
imagePullPolicy: {{ (merge (dict) (index . 1) $root.Values.image).pullPolicy }}
{{- end }}

{{- define "kafka-timers.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "kafka-timers.name" .) .Values.serviceAccount.name -}}
{{- else }}{{ default "default" .Values.serviceAccount.name }}{{ end -}}
{{- end }}

{{/* Of a list of the root, options of a process by their names, and how it logs in: its environment. */}}
{{- define "kafka-timers.env" -}}
{{- $root := index . 0 -}}
{{- $login := index . 2 -}}
- {name: KAFKA_TIMERS_BOOTSTRAP, value: {{ required "kafka.bootstrap is needed: host:port of some brokers" $root.Values.kafka.bootstrap | quote }}}
- {name: KAFKA_TIMERS_TOPIC_PREFIX, value: {{ $root.Values.kafka.topicPrefix | quote }}}
{{- range $name, $value := index . 1 }}
- {name: KAFKA_TIMERS_{{ upper $name }}, value: {{ include "kafka-timers.text" $value | quote }}}
{{- end }}
{{- range $name, $value := merge (dict) $login.config $root.Values.kafka.config }}
- {name: KAFKA_TIMERS_{{ $name | replace "." "_" | upper }}, value: {{ $value | quote }}}
{{- end }}
{{- with $login.secret }}
{{- $secret := . }}
{{- range $key, $name := dict "password" "SASL_PASSWORD" "client-secret" "SASL_OAUTHBEARER_CLIENT_SECRET" "key-password" "SSL_KEY_PASSWORD" }}
- name: KAFKA_TIMERS_{{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: {{ $key }}, optional: true}}
{{- end }}
{{- end }}
{{- with $root.Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Of a list of the root and how a process logs in: where the files for it are, as volumeMounts and as volumes. */}}
{{- define "kafka-timers.loginMounts" -}}
{{- with (index . 0).Values.kafka.caSecret }}
- {name: kafka-ca, mountPath: /etc/kafka/ca, readOnly: true}
{{- end }}
{{- with (index . 1).secret }}
- {name: kafka-user, mountPath: /etc/kafka/user, readOnly: true}
{{- end }}
{{- end }}

{{- define "kafka-timers.loginVolumes" -}}
{{- with (index . 0).Values.kafka.caSecret }}
- {name: kafka-ca, secret: {secretName: {{ . }}}}
{{- end }}
{{- with (index . 1).secret }}
- {name: kafka-user, secret: {secretName: {{ . }}}}
{{- end }}
{{- end }}

{{/* Of a StatefulSet whose pods tick: the rank of each is the index of its pod. */}}
{{- define "kafka-timers.rank" -}}
- name: KAFKA_TIMERS_REPLICA
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
{{- end }}

{{/* The component whose pods have the console. */}}
{{- define "kafka-timers.consoleIn" -}}
{{- ternary "worker" "console" (eq .Values.mode "serve") -}}
{{- end }}

{{/* Options of the console by their names, as YAML. */}}
{{- define "kafka-timers.consoleSettings" -}}
{{- $values := .Values.console }}
{{- if not .Values.worker.queries.enabled }}
{{- fail "worker.queries.enabled is needed: set it to true, because the console asks the workers for the waiting timers" }}
{{- end }}
{{- if not (or $values.tokensSecret (and $values.settings.user_header $values.settings.proxy)) }}
{{- fail "console.tokensSecret is needed, or console.settings.user_header and proxy: without them every pod in the cluster could use the console" }}
{{- end }}
{{- /* The names of its Service, and those in settings.allowed_hosts. */}}
{{- $name := printf "%s-console" (include "kafka-timers.name" .) }}
{{- $hosts := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) }}
{{- with $values.settings.allowed_hosts }}
{{- $hosts = append $hosts . }}
{{- end }}
{{- merge (dict "allowed_hosts" (join "," $hosts)) $values.settings (pick .Values.worker.settings "allowed_topics" "seal_every_s") | toYaml }}
{{- end }}

{{/* Of a list of the root and whether a pod has the console that others reach: the tokens of those who ask, as variables, volumeMounts and volumes. */}}
{{- define "kafka-timers.tokenEnv" -}}
{{- if (index . 0).Values.worker.queries.enabled }}
- {name: KAFKA_TIMERS_QUERY_TOKEN_FILE, value: /etc/kafka-timers/queries/token}
{{- end }}
{{- if and (index . 1) (index . 0).Values.console.tokensSecret }}
- {name: KAFKA_TIMERS_TOKEN_FILE, value: /etc/kafka-timers/console/tokens}
{{- end }}
{{- end }}

{{- define "kafka-timers.tokenMounts" -}}
{{- if (index . 0).Values.worker.queries.enabled }}
- {name: queries, mountPath: /etc/kafka-timers/queries, readOnly: true}
{{- end }}
{{- if and (index . 1) (index . 0).Values.console.tokensSecret }}
- {name: tokens, mountPath: /etc/kafka-timers/console, readOnly: true}
{{- end }}
{{- end }}

{{- define "kafka-timers.tokenVolumes" -}}
{{- $values := (index . 0).Values }}
{{- if $values.worker.queries.enabled }}
- {name: queries, secret: {secretName: {{ required "worker.queries.tokenSecret is needed: a Secret with the key token" $values.worker.queries.tokenSecret }}}}
{{- end }}
{{- if and (index . 1) $values.console.tokensSecret }}
- {name: tokens, secret: {secretName: {{ $values.console.tokensSecret }}}}
{{- end }}
{{- end }}

{{/* YAML's numbers are floats to Helm, and 86400000 would come out as 8.64e+07. */}}
{{- define "kafka-timers.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{- define "kafka-timers.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "kafka-timers.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Where pods of a list of the root, a component and its values run: spread over hosts, as far as there are some. */}}
{{- define "kafka-timers.placement" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
serviceAccountName: {{ and $root.Values.serviceAccount.create $values.serviceAccount | default (include "kafka-timers.serviceAccount" $root) }}
automountServiceAccountToken: {{ $values.usesKubernetes | default false }}
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{ include "kafka-timers.selector" . | nindent 14 }}
{{ include "kafka-timers.podSecurity" $root }}
{{- end }}

{{/* /livez alone restarts a process; /readyz tells, and gets nothing better by a restart. */}}
{{- define "kafka-timers.probes" -}}
ports:
  - {name: http, containerPort: 8080}
livenessProbe:
  httpGet: {path: /livez, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 1
startupProbe:
  httpGet: {path: /livez, port: http}
  periodSeconds: 2
  failureThreshold: 30
{{- end }}
